"""Validation of strategies: run an op by a strategy, on ranks simulated in a list, and compare with one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from spmdir.checking.rules.exchanges import EXCHANGES, INDICES, RING_OPS
from spmdir.checking.rules.references import REFERENCES
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.values import adds, difference, local_values, noise, seed
from spmdir.core.dtype import DType
from spmdir.core.errors import RuleError, SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import LocalType, PartialPlacement, own_type
from spmdir.core.placement.call import Call, Local, shard_of
from spmdir.core.placement.standard import Placement, R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules import OpRule, RuleSet, Strategy
from spmdir.rules.language.syntax_tree import TextStrategy
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.local.rank import Rank
from spmdir.rules.strategies.plugin_placements import plugins_among
from spmdir.rules.strategies.split_products import SPLIT
from spmdir.rules.strategies.strategy import shard_counts
from spmdir.torch_interop.decompositions import decomposition_table, has_cpu_kernel
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import is_random, torch_op


def meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype])


def bound(
    target: Any, slots: Sequence[Any], tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of an overload; `slots` tell which tensor fills which parameter."""
    numbers = iter(slots)
    values = {}
    for argument in schema_of(target).arguments:
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
    for argument in schema_of(target).arguments:
        if argument.kwarg_only or argument.name not in values:
            break
        positional.append(values.pop(argument.name))
    return positional, values


def runnable(name: str) -> Any:
    """Return what computes op `name` on a CPU: a reference, the op, or its decomposition if it has no kernel there."""
    target = torch_op(name)
    if name in REFERENCES:
        return REFERENCES[name]
    return target if has_cpu_kernel(target) else decomposition_table.get(target, target)


def run_op(name: str, slots: Sequence[Any], tensors: Sequence[torch.Tensor], arguments: Mapping[str, Any]) -> list[Any]:
    """Return the op's results as a flat list; `slots` say which tensor fills which tensor parameter."""
    target = torch_op(name)
    positional, values = bound(target, slots, tensors, arguments)
    draws = is_random(target)
    target = runnable(name)
    with torch.random.fork_rng((), enabled=draws):
        if draws:
            torch.default_generator.manual_seed(17)
        result = target(*positional, **values)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def call_of(sample: Sample) -> tuple[Call, list[torch.Tensor], list[Any]]:
    """Return the sample as a Call, its flat operands, and what the op gives for them."""
    parameters = [a.name for a in schema_of(torch_op(sample.op)).arguments if "Tensor" in str(a.type)]
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


Chosen = Sequence[tuple[str, Strategy]]
"""(mesh axis, the strategy chosen on it), outer axes first."""


def distribute(tensor: torch.Tensor, placements: Sequence[tuple[int, Placement]]) -> list[torch.Tensor]:
    """Return the local tensor of every rank, in row-major order, for (axis size, placement), outermost axis first."""
    if not placements:
        return [tensor]
    (count, placement), *inner = placements
    return [final for local in local_values(tensor, placement, count) for final in distribute(local, inner)]


def collect(
    local: Sequence[torch.Tensor], placements: Sequence[tuple[int, Placement]], type_: LocalType
) -> torch.Tensor:
    """Return the tensor of global `type_` of which ranks have `local`, for (axis size, placement), outermost axis
    first."""
    if not placements:
        return local[0]
    (count, placement), *inner = placements
    step = len(local) // count
    parts = [
        collect(local[i * step : (i + 1) * step], inner, own_type(placement, *type_, count, i)) for i in range(count)
    ]
    return placement.collect_as(parts, *type_)


def local_type(type_: LocalType, chosen: Chosen, result: int, mesh: Mesh, rank: int) -> LocalType:
    """Return the type of what `rank` has of a result of global `type_`."""
    at = mesh.coordinate(rank)
    for axis, strategy in chosen:
        type_ = own_type(strategy.results[result], *type_, mesh.sizes[axis], at[axis])
    return type_


def _resolved(value: Any, mesh: Mesh, rank: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_resolved(v, mesh, rank) for v in value)
    return value.evaluate(mesh, mesh.coordinate(rank)) if isinstance(value, Local) else value


def run_strategies(rule: OpRule, chosen: Chosen, mesh: Mesh, local: list[list[torch.Tensor]]) -> list[list[Any]]:
    """Return the local results, per result and rank, of the `chosen` strategies on `local` operands, likewise."""
    if any(strategy.rewrite == "expand" for _, strategy in chosen):
        return _run_expansion(rule, chosen, mesh, local)
    form = form_of(rule, chosen, mesh, tuple(meta(each[0]) for each in local))
    if form is not None:
        return _run_form(form, mesh, local)
    outcomes = []
    for rank in range(mesh.world_size):
        arguments = dict(rule.call.arguments)
        first = rule.call.results[0]
        for name in rule.shape_arguments:
            assert first is not None
            arguments[name] = local_type((first.shape, first.dtype), chosen, 0, mesh, rank)[0]
        outcomes.append(run_op(rule.call.name, rule.call.slots, [each[rank] for each in local], arguments))
    return [list(result) for result in zip(*outcomes, strict=True)]


def form_of(rule: OpRule, chosen: Chosen, mesh: Mesh, operands: tuple[TensorMeta, ...]) -> Expansion | None:
    """Return the local form of the `chosen` strategies on rank 0, which has `operands`; None if there is none."""
    used = [strategy for _, strategy in chosen]
    if all(one.rewrite not in ("local", SPLIT) for one in used):
        return None
    entries: dict[int, list[tuple[str, Placement]]] = {}
    for axis, strategy in chosen:
        for factor in strategy.factors:
            entries.setdefault(factor, []).append((axis, strategy.placement_of(factor)))
    shards = {factor: shard_of(rule.factors[factor].size, placed) for factor, placed in entries.items()}
    scattered = frozenset(factor for factor, shard in shards.items() if not shard.is_contiguous(mesh))
    return rule.local_form(shards, operands, Rank(mesh, mesh.coordinate(0)), scattered, used)


def _run_form(form: Expansion, mesh: Mesh, local: list[list[torch.Tensor]]) -> list[list[Any]]:
    """Run the ops of a local form on all ranks in step, since some exchange values."""
    values: dict[Value, list[Any]] = {Value("operand", i): each for i, each in enumerate(local)}
    needed = [_needed(form, mesh, rank) for rank in range(mesh.world_size)]
    for number, op in enumerate(form.ops):
        operands = [values[v] for v in op.operands]
        if op.call.name in EXCHANGES:
            values[Value("op", number)] = EXCHANGES[op.call.name](*operands, mesh=mesh, **op.call.argument)
            continue
        if op.call.name in INDICES:
            shard: Any = op.call.argument["of"]
            ranges = [shard.ranges(mesh, mesh.coordinate(rank)) for rank in range(mesh.world_size)]
            values[Value("op", number)] = INDICES[op.call.name](ranges, *operands)
            continue
        outcomes = []
        for rank in range(mesh.world_size):
            arguments = {k: _resolved(v, mesh, rank) for k, v in op.call.arguments}
            given = [each[rank] for each in operands]
            run = RING_OPS.get(op.call.name)
            if number not in needed[rank]:
                outcomes.append((None,) * len(op.call.results))
            else:
                outcomes.append(
                    run(*given, **arguments) if run else run_op(op.call.name, op.call.slots, given, arguments)
                )
        values.update((Value("op", number, i), list(r)) for i, r in enumerate(zip(*outcomes, strict=True)))
    return [[None] * mesh.world_size if v is None else values[v] for v in form.results]


def _needed(form: Expansion, mesh: Mesh, rank: int) -> set[int]:
    """Return the ops of `form` that `rank` runs: all exchanges, but not what it does not choose."""
    needed = {value.index for value in form.results if value is not None and value.source == "op"}
    for number, op in reversed([*enumerate(form.ops)]):
        if number not in needed and op.call.name not in EXCHANGES:
            continue
        needed.add(number)
        operands = op.operands
        if op.call.name == "spmd.choose":
            operands = operands[: 1 if _resolved(op.call.argument["when"], mesh, rank) else 2][-1:]
        needed |= {value.index for value in operands if value.source == "op"}
    return needed


def _run_expansion(rule: OpRule, chosen: Chosen, mesh: Mesh, local: list[list[torch.Tensor]]) -> list[list[Any]]:
    ((axis, strategy),) = chosen
    (factor,) = strategy.factors
    expansion = rule.expansion(factor)
    placed = rule.expansion_layout(factor, mesh.sizes[axis], operands=strategy.operands)
    assert placed is not None
    values = {Value("operand", i): (strategy.operands[i], each) for i, each in enumerate(local)}
    shapes = {Value("operand", i): meta.shape for i, meta in enumerate(rule.call.operands)}
    for number, (op, inner_strategy) in enumerate(zip(expansion.ops, placed.strategies, strict=True)):
        operands = []
        shapes.update((Value("op", number, i), meta.shape) for i, meta in enumerate(op.call.results) if meta)
        for value, wanted in zip(op.operands, inner_strategy.operands, strict=True):
            placement, each = values[value]
            if placement != wanted:
                assert R in (placement, wanted)
                each = wanted.distribute(placement.collect(each, shapes[value]), len(each), noise)
            operands.append(each)
        inner = rule.rules.instantiate(op.call)
        assert inner is not None
        for i, result in enumerate(run_strategies(inner, [(axis, inner_strategy)], mesh, operands)):
            values[Value("op", number, i)] = (inner_strategy.results[i], result)
    assert placed.results == strategy.results
    return [[None] * mesh.world_size if v is None else values[v][1] for v in expansion.results]


@attrs.frozen
class Case:
    """A sample that is ready to be run.

    Attributes:
        rule: the rule on its call.
        operands, expected: its flat operands, and what the op gives for them.
        finite: whether the operands are finite, so that an infinite result is the op's own and may not become NaN.
    """

    rule: OpRule
    operands: list[torch.Tensor]
    expected: list[Any]
    finite: bool = False


FAILURES = RuntimeError, IndexError, ValueError, TypeError, AssertionError, SpmdirError
"""What is raised where a strategy is run that is wrong."""


def check_strategies(case: Case, chosen: Chosen, mesh: Mesh) -> str | None:
    """Return what is wrong with running `case` by the `chosen` strategies; None if nothing is.

    Raises:
        UnsupportedError: the values of the operands cannot be placed so.
    """
    rule, operands, expected = case.rule, case.operands, case.expected
    placements = [[(mesh.sizes[axis], strategy.operands[i]) for axis, strategy in chosen] for i in range(len(operands))]
    try:
        local = [distribute(tensor, placed) for tensor, placed in zip(operands, placements, strict=True)]
    except UnsupportedError:
        raise
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    try:
        results = run_strategies(rule, chosen, mesh, local)
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    summed = any(adds(p) for _, strategy in chosen for p in (*strategy.operands, *strategy.results))
    summed |= any(one.rewrite == SPLIT and rule.factors[one.factors[0]].kind == "sum" for _, one in chosen)
    through_sums = summed and not case.finite
    for index, (each, right) in enumerate(zip(results, expected, strict=True)):
        if right is None:
            continue
        placements = [(mesh.sizes[axis], strategy.results[index]) for axis, strategy in chosen]
        type_ = tuple(right.shape), DTYPES_OF_TORCH[right.dtype]
        for rank, local in enumerate(each):
            shape, dtype = local_type(type_, chosen, index, mesh, rank)
            if tuple(local.shape) != shape:
                return f"result {index} of rank {rank} has shape {tuple(local.shape)}, not {shape}"
            if local.dtype != TORCH_DTYPES[dtype]:
                return f"result {index} has type {local.dtype}, not {TORCH_DTYPES[dtype]}"
        fault = difference(collect(each, placements, type_), right, through_sums)
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
        is_run: whether it was run; False where the values of operands cannot be placed so.
        texts: the strategies written as text among those that it was run by.
    """

    strategy: str
    mesh: str
    fault: str | None
    is_run: bool = True
    texts: tuple[TextStrategy, ...] = ()


def prepare(sample: Sample, rules: RuleSet) -> Case:
    """Return `sample` as a case.

    Raises:
        RuleError: no rule is for this call.
    """
    call, operands, expected = call_of(sample)
    rule = rules.instantiate(call)
    if rule is None:
        raise RuleError(f"no rule for {sample.op}")
    return Case(rule, operands, expected if sample.compare else [None] * len(expected))


def on_one_axis(case: Case, counts: Sequence[int], extras: Sequence[Placement] = ()) -> Iterator[Verdict]:
    """Yield a verdict on every strategy of `case` for axes of `counts` ranks; with `extras`, on those of plug-ins."""
    for count in counts:
        for strategy in strategies_of(case.rule, count, extras):
            yield judge(case, [("x", strategy)], Mesh({"x": count}))


def strategies_of(rule: OpRule, count: int, extras: Sequence[Placement] = ()) -> tuple[Strategy, ...]:
    """Return the strategies on an axis of `count` ranks, those that split a product among them; with `extras`, those
    that these plug-ins add."""
    known = rule.strategies(count)
    if not extras:
        return (*known, *rule.split_strategies(count))
    return rule.strategies(count, placements=tuple(extras))[len(known) :]  # those of plug-ins come last


def judge(case: Case, chosen: Chosen, mesh: Mesh) -> Verdict:
    """Run `case` by the `chosen` strategies; twice, with other random values, where operands are partial."""
    text = " and ".join(str(strategy) for _, strategy in chosen)
    partial = any(p.trait == "partial" for _, strategy in chosen for p in strategy.operands)
    fault, is_run = None, False
    for again in range(2 if partial else 1):
        seed(case.rule.call.name, text, mesh.world_size, again)
        try:
            fault = fault or check_strategies(case, chosen, mesh)
            is_run = True
        except UnsupportedError:  # values that cannot be placed so say nothing
            continue
    texts = tuple(strategy.text for _, strategy in chosen if strategy.text is not None)
    return Verdict(text, " x ".join(str(n) for n in mesh.sizes.values()), fault, is_run, texts)


def hold_together(
    rule: OpRule, chosen: Sequence[Strategy], counts: Sequence[int], extras: Sequence[Placement] = ()
) -> bool:
    """Return whether a well-typed program may use one strategy an axis, outer axes first, on axes of `counts` ranks.

    No factor is sharded finer than the rule allows, and no value is partial by two kinds of reduction. Expansions are
    left out, since they are ops of their own when several axes shard them.
    """
    if any(strategy.rewrite == "expand" for strategy in chosen) or _mixed(chosen):
        return False
    ranks = list(zip(chosen, counts, strict=True))
    others = [shard_counts(ranks[:i] + ranks[i + 1 :]) for i in range(len(ranks))]
    return all(
        strategy in rule.strategies(count, sharded, tuple(extras))
        for (strategy, count), sharded in zip(ranks, others, strict=True)
    )


def _mixed(chosen: Sequence[Strategy]) -> bool:
    values = zip(*((*strategy.operands, *strategy.results) for strategy in chosen), strict=True)
    return any(len({p.kind for p in value if isinstance(p, PartialPlacement)}) > 1 for value in values)


def unsound(
    sample: Sample, rules: RuleSet, counts: Sequence[int] = (2, 3), pairs: bool = True, extras: Sequence[Placement] = ()
) -> list[str]:
    """Return what is wrong with the strategies of `sample` on one axis of each of `counts` ranks, and on two axes of 2.

    With `extras`, only the strategies that these add are run."""
    case = prepare(sample, rules)
    verdicts = list(on_one_axis(case, counts, extras))
    if pairs:
        mesh = Mesh({"x": 2, "y": 2})
        for chosen in _pairs(case.rule, tuple(extras)):
            verdicts.append(judge(case, list(zip("xy", chosen, strict=True)), mesh))
    return [f"{sample.op} {case.rule.text()} on {v.mesh} ranks, {v.strategy}: {v.fault}" for v in verdicts if v.fault]


def _pairs(rule: OpRule, extras: tuple[Placement, ...]) -> Iterator[tuple[Strategy, Strategy]]:
    """Yield the pairs that shard factors on two axes of 2 ranks; with `extras`, those where plug-ins occur."""
    for outer in rule.strategies(2, placements=extras):
        if not outer.factors:
            continue
        # What is compatible with the outer axis alone may be sharded too: a minor factor whose major one that shards.
        for inner in rule.strategies(2, shard_counts([(outer, 2)]), extras):
            occurring = (*outer.operands, *outer.results, *inner.operands, *inner.results)
            plugged = not extras or bool(plugins_among(occurring))
            if inner.factors and plugged and hold_together(rule, (outer, inner), (2, 2), extras):
                yield outer, inner
