"""Runs an op the way a strategy says, on ranks simulated in a list, and compares with the op run at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._decomp import decomposition_table

from spmdir.checking.rules.exchanges import EXCHANGES
from spmdir.checking.rules.references import REFERENCES
from spmdir.checking.rules.sample import Sample
from spmdir.checking.rules.values import adds, difference, noise, pieces, seed
from spmdir.core.call import Call, Local
from spmdir.core.dtype import DType
from spmdir.core.errors import RuleError, SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement, R
from spmdir.core.tensor import TensorMeta
from spmdir.rules import Expansion, OpRule, RuleSet, Strategy, Value
from spmdir.rules.strategies.plugin_placements import plugins_among
from spmdir.rules.strategies.strategy import shard_counts
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES
from spmdir.torch_interop.schemas import is_random, torch_op


def meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype])


def bound(
    target: Any, slots: Sequence[Any], tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What to call an overload with, by position and by name; `slots` say which tensor fills which tensor parameter."""
    numbers = iter(slots)
    values = {}
    for argument in target._schema.arguments:
        if "Tensor" in str(argument.type):
            slot = None if argument.name in arguments else next(numbers, None)
            if isinstance(slot, tuple):
                values[argument.name] = [None if s is None else tensors[s] for s in slot]
            elif slot is not None or argument.name in arguments:
                values[argument.name] = arguments[argument.name] if slot is None else tensors[slot]
            else:
                values[argument.name] = None
        elif argument.name in arguments:
            value = arguments[argument.name]
            values[argument.name] = TORCH_DTYPES[value] if isinstance(value, DType) else value
    positional = []
    for argument in target._schema.arguments:
        if argument.kwarg_only or argument.name not in values:
            break
        positional.append(values.pop(argument.name))
    return positional, values


def run_op(name: str, slots: Sequence[Any], tensors: Sequence[torch.Tensor], arguments: Mapping[str, Any]) -> list[Any]:
    """The op's results as a flat list; `slots` say which tensor fills which tensor parameter."""
    target = torch_op(name)
    positional, values = bound(target, slots, tensors, arguments)
    draws = is_random(target)
    if name in REFERENCES:
        target = REFERENCES[name]
    elif not torch._C._dispatch_has_computed_kernel_for_dispatch_key(target.name(), "CPU"):
        target = decomposition_table.get(target, target)
    with torch.random.fork_rng((), enabled=draws):
        if draws:
            torch.manual_seed(17)
        result = target(*positional, **values)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def call_of(sample: Sample) -> tuple[Call, list[torch.Tensor], list[Any]]:
    """The sample as a Call, its flat operands, and what the op gives for them."""
    parameters = [a.name for a in torch_op(sample.op)._schema.arguments if "Tensor" in str(a.type)]
    flat: list[torch.Tensor] = []
    structure: list[Any] = []
    arguments = dict(sample.arguments)
    for name, operand in zip(parameters, sample.operands, strict=False):
        if isinstance(operand, list):
            structure.append(tuple(int(t is not None) for t in operand))
            flat += [t for t in operand if t is not None]
        elif isinstance(operand, torch.Tensor):
            structure.append(1)
            flat.append(operand)
        elif operand is None:
            structure.append(0)
        else:
            arguments[name] = operand
    plain = all(entry == 1 for entry in structure)
    items = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in arguments.items()))
    bare = Call(sample.op, tuple(map(meta, flat)), items, (), None if plain else tuple(structure))
    # Some ops write into operands behind their schemas.
    results = run_op(sample.op, bare.slots, [t.clone() for t in flat], bare.argument)
    metas = tuple(None if r is None else meta(r) for r in results)
    return attrs.evolve(bare, results=metas), flat, results


Rows = Sequence[tuple[str, Strategy]]
"""(mesh axis, strategy), outer axes first."""


def distribute(tensor: torch.Tensor, placements: Sequence[tuple[int, Placement]]) -> list[torch.Tensor]:
    """What every rank holds, ranks row-major, for (axis size, placement) with the outermost axis first."""
    if not placements:
        return [tensor]
    (count, placement), *inner = placements
    return [p for piece in pieces(tensor, placement, count) for p in distribute(piece, inner)]


def collect(held: Sequence[torch.Tensor], placements: Sequence[tuple[int, Placement]]) -> torch.Tensor:
    if not placements:
        return held[0]
    (count, placement), *inner = placements
    step = len(held) // count
    return placement.collect([collect(held[i * step : (i + 1) * step], inner) for i in range(count)])


def local_shape(shape: Sequence[int], rows: Rows, result: int, mesh: Mesh, rank: int) -> tuple[int, ...]:
    sizes, at = tuple(shape), mesh.coordinate(rank)
    for axis, row in rows:
        sizes = row.results[result].local_shape(sizes, mesh.sizes[axis], at[axis])
    return sizes


def _resolved(value: Any, mesh: Mesh, rank: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_resolved(v, mesh, rank) for v in value)
    return value.evaluate(mesh, mesh.coordinate(rank)) if isinstance(value, Local) else value


def run_rows(rule: OpRule, rows: Rows, mesh: Mesh, held: list[list[torch.Tensor]]) -> list[list[Any]]:
    """Per result, what each rank has after running as `rows` say; `held` is per operand what each rank holds."""
    if any(row.rewrite == "expand" for _, row in rows):
        return _run_expansion(rule, rows, mesh, held)
    axes: dict[int, tuple[str, ...]] = {}
    for axis, row in rows:
        if row.factor is not None:
            axes[row.factor] = (*axes.get(row.factor, ()), axis)
    form = rule.local_form(axes) if any(row.rewrite == "local" for _, row in rows) else None
    if form is not None:
        return _run_form(form, mesh, held)
    outcomes = []
    for rank in range(mesh.world_size):
        arguments = dict(rule.call.arguments)
        first = rule.call.results[0]
        for name in rule.shape_arguments:
            assert first is not None
            arguments[name] = local_shape(first.shape, rows, 0, mesh, rank)
        outcomes.append(run_op(rule.call.name, rule.call.slots, [each[rank] for each in held], arguments))
    return [list(result) for result in zip(*outcomes, strict=True)]


def _run_form(form: Expansion, mesh: Mesh, held: list[list[torch.Tensor]]) -> list[list[Any]]:
    """All ranks go from piece to piece together, since some exchange what they hold."""
    values: dict[Value, list[Any]] = {Value("operand", i): each for i, each in enumerate(held)}
    for number, piece in enumerate(form.ops):
        operands = [values[v] for v in piece.operands]
        if piece.call.name in EXCHANGES:
            values[Value("op", number)] = EXCHANGES[piece.call.name](operands[0], mesh, **piece.call.argument)
            continue
        outcomes = []
        for rank in range(mesh.world_size):
            arguments = {k: _resolved(v, mesh, rank) for k, v in piece.call.arguments}
            given = [each[rank] for each in operands]
            outcomes.append(run_op(piece.call.name, piece.call.slots, given, arguments))
        values.update((Value("op", number, i), list(r)) for i, r in enumerate(zip(*outcomes, strict=True)))
    return [[None] * mesh.world_size if v is None else values[v] for v in form.results]


def _run_expansion(rule: OpRule, rows: Rows, mesh: Mesh, held: list[list[torch.Tensor]]) -> list[list[Any]]:
    ((axis, row),) = rows
    assert row.factor is not None
    expansion = rule.expansion(row.factor)
    placed = rule.expansion_layout(row.factor, mesh.sizes[axis], operands=row.operands)
    assert placed is not None
    values = {Value("operand", i): (row.operands[i], each) for i, each in enumerate(held)}
    for number, (piece, inner_row) in enumerate(zip(expansion.ops, placed.strategies, strict=True)):
        operands = []
        for value, wanted in zip(piece.operands, inner_row.operands, strict=True):
            placement, each = values[value]
            if placement != wanted:
                assert R in (placement, wanted)
                each = wanted.distribute(placement.collect(each), len(each), noise)
            operands.append(each)
        inner = rule.rules.instantiate(piece.call)
        assert inner is not None
        for i, result in enumerate(run_rows(inner, [(axis, inner_row)], mesh, operands)):
            values[Value("op", number, i)] = (inner_row.results[i], result)
    assert placed.results == row.results
    return [[None] * mesh.world_size if v is None else values[v][1] for v in expansion.results]


@attrs.frozen
class Case:
    """A sample that is ready to be run.

    Attributes:
        rule: the rule on its call.
        operands, expected: its flat operands, and what the op gives for them.
        finite: the operands are finite, so that an infinity that comes out is the op's own and may not become NaN.
    """

    rule: OpRule
    operands: list[torch.Tensor]
    expected: list[Any]
    finite: bool = False


def check_rows(case: Case, rows: Rows, mesh: Mesh) -> str | None:
    """What is wrong with running `case` as `rows` say; None if nothing is."""
    rule, operands, expected = case.rule, case.operands, case.expected
    placements = [[(mesh.sizes[axis], row.operands[i]) for axis, row in rows] for i in range(len(operands))]
    try:
        held = [distribute(tensor, placed) for tensor, placed in zip(operands, placements, strict=True)]
        results = run_rows(rule, rows, mesh, held)
    except UnsupportedError:
        return None  # values that cannot be held so tell nothing
    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError, SpmdirError) as error:
        return f"{type(error).__name__}: {error}"
    summed = any(adds(p) for _, row in rows for p in (*row.operands, *row.results))
    through_sums = summed and not case.finite
    for index, (each, right) in enumerate(zip(results, expected, strict=True)):
        if right is None:
            continue
        placements = [(mesh.sizes[axis], row.results[index]) for axis, row in rows]
        for rank, piece in enumerate(each):
            shape = local_shape(right.shape, rows, index, mesh, rank)
            if tuple(piece.shape) != shape:
                return f"result {index} of rank {rank} has shape {tuple(piece.shape)}, not {shape}"
            if piece.dtype != right.dtype:
                return f"result {index} has type {piece.dtype}, not {right.dtype}"
        fault = difference(collect(each, placements), right, through_sums)
        if fault:
            return f"result {index} {fault}"
    return None


@attrs.frozen
class Verdict:
    """What became of one way to run a sample.

    Attributes:
        strategy: as text.
        mesh: the mesh axes' sizes, as text.
        fault: what is wrong with the result; None if nothing is.
    """

    strategy: str
    mesh: str
    fault: str | None


def prepare(sample: Sample, rules: RuleSet) -> Case:
    """`sample` as a case.

    Raises:
        RuleError: no rule is for this call.
    """
    call, operands, expected = call_of(sample)
    rule = rules.instantiate(call)
    if rule is None:
        raise RuleError(f"no rule for {sample.op}")
    return Case(rule, operands, expected if sample.compare else [None] * len(expected))


def on_one_axis(case: Case, counts: Sequence[int], extras: Sequence[Placement] = ()) -> Iterator[Verdict]:
    """Every strategy of `case` on one axis of each of `counts` ranks; with `extras`, those of these plug-ins alone."""
    for count in counts:
        for row in offered(case.rule, count, extras):
            yield judge(case, [("x", row)], Mesh({"x": count}))


def offered(rule: OpRule, count: int, extras: Sequence[Placement] = ()) -> tuple[Strategy, ...]:
    """The strategies on an axis of `count` ranks; with `extras`, those that these plug-ins add."""
    rows = rule.strategies(count, extras=tuple(extras))
    return rows[len(rule.strategies(count)) :] if extras else rows  # those of plug-ins come last


def judge(case: Case, rows: Rows, mesh: Mesh) -> Verdict:
    """`case` run as `rows` say; twice, with other random pieces, where reductions are pending."""
    text = " and ".join(str(row) for _, row in rows)
    pending = any(p.trait == "partial" for _, row in rows for p in row.operands)
    fault = None
    for again in range(2 if pending else 1):
        seed(case.rule.call.name, text, mesh.world_size, again)
        fault = fault or check_rows(case, rows, mesh)
    return Verdict(text, " x ".join(str(n) for n in mesh.sizes.values()), fault)


def hold_together(
    rule: OpRule, rows: Sequence[Strategy], counts: Sequence[int], extras: Sequence[Placement] = ()
) -> bool:
    """Whether a well-typed program may use one strategy an axis, outer axes first, on axes of `counts` ranks.

    No factor is cut finer than the rule allows, and no value is pending by two kinds of reduction. Expansions are
    left out, since they are ops of their own when several axes divide them.
    """
    if any(row.rewrite == "expand" for row in rows) or _mixed(rows):
        return False
    ranks = list(zip(rows, counts, strict=True))
    others = [shard_counts(ranks[:i] + ranks[i + 1 :]) for i in range(len(ranks))]
    return all(
        row in rule.strategies(count, divided, tuple(extras))
        for (row, count), divided in zip(ranks, others, strict=True)
    )


def _mixed(rows: Sequence[Strategy]) -> bool:
    values = zip(*((*row.operands, *row.results) for row in rows), strict=True)
    return any(len({p.kind for p in value if isinstance(p, PartialPlacement)}) > 1 for value in values)


def unsound(
    sample: Sample, rules: RuleSet, counts: Sequence[int] = (2, 3), pairs: bool = True, extras: Sequence[Placement] = ()
) -> list[str]:
    """What is wrong with the strategies of `sample`, or, of them, with those that `extras` add: on one axis of each of
    `counts` ranks, and on two axes of 2."""
    case = prepare(sample, rules)
    verdicts = list(on_one_axis(case, counts, extras))
    if pairs:
        mesh = Mesh({"x": 2, "y": 2})
        for rows in _pairs(case.rule, tuple(extras)):
            verdicts.append(judge(case, list(zip("xy", rows, strict=True)), mesh))
    return [f"{sample.op} {case.rule.text()} on {v.mesh} ranks, {v.strategy}: {v.fault}" for v in verdicts if v.fault]


def _pairs(rule: OpRule, extras: tuple[Placement, ...]) -> Iterator[tuple[Strategy, Strategy]]:
    """The strategies that divide factors on two axes of 2 ranks together; with `extras`, those where plug-ins occur."""
    for outer in rule.strategies(2, extras=extras):
        if outer.factor is None:
            continue
        # What goes with the outer axis alone may be divided too: a minor factor whose major one that divides.
        for inner in rule.strategies(2, shard_counts([(outer, 2)]), extras):
            occurring = (*outer.operands, *outer.results, *inner.operands, *inner.results)
            plugged = not extras or bool(plugins_among(occurring))
            if inner.factor is not None and plugged and hold_together(rule, (outer, inner), (2, 2), extras):
                yield outer, inner
