"""Run an op by a strategy on simulated ranks, and compare the results with those of one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from spmdir.checking.rules.local_form_ops import EXCHANGES, INDICES, RING_OPS
from spmdir.checking.rules.references import REFERENCES
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.values import difference, is_sum_or_product, local_values, noise, seed
from spmdir.core.dtype import DType
from spmdir.core.errors import SpmdirError, UnsupportedError
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
    """Return the shape and element type of a tensor."""
    return TensorMeta(tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype])


def bind_arguments(
    target: Any, slots: Sequence[Any], tensors: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of an overload.

    Args:
        slots: for each tensor parameter that `arguments` does not contain, the index of its tensor, a tuple of indices
            for a list of tensors, or None.
        arguments: name → other argument, or a number for a tensor parameter.
    """
    remaining_slots = iter(slots)
    values = {}
    for argument in schema_of(target).arguments:
        if argument.name in arguments:
            value = arguments[argument.name]
            values[argument.name] = TORCH_DTYPES[value] if isinstance(value, DType) else value
        elif "Tensor" in str(argument.type):
            slot = next(remaining_slots, None)
            if isinstance(slot, tuple):
                values[argument.name] = [None if index is None else tensors[index] for index in slot]
            else:
                values[argument.name] = None if slot is None else tensors[slot]
    positional = []
    for argument in schema_of(target).arguments:
        if argument.kwarg_only or argument.name not in values:
            break
        positional.append(values.pop(argument.name))
    return positional, values


def cpu_implementation(name: str) -> Any:
    """Return a function that computes op `name` on a CPU: a reference, the op, or its decomposition."""
    target = torch_op(name)
    if name in REFERENCES:
        return REFERENCES[name]
    return target if has_cpu_kernel(target) else decomposition_table.get(target, target)


def run_op(name: str, slots: Sequence[Any], tensors: Sequence[torch.Tensor], arguments: Mapping[str, Any]) -> list[Any]:
    """Run an op and return its results as a flat list; `slots` is as for `bind_arguments`.

    Every call of a random op draws the same numbers, and does not change torch's random state.
    """
    target = torch_op(name)
    positional, values = bind_arguments(target, slots, tensors, arguments)
    is_random_op = is_random(target)
    target = cpu_implementation(name)
    with torch.random.fork_rng((), enabled=is_random_op):
        if is_random_op:
            torch.default_generator.manual_seed(17)
        result = target(*positional, **values)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def call_of(sample: Sample) -> tuple[Call, list[torch.Tensor], list[Any]]:
    """Run a sample on one device, and return its Call, its flat operands, and its results.

    A number for a tensor parameter becomes an argument of the Call.
    """
    schema = schema_of(torch_op(sample.op))
    parameters = [argument.name for argument in schema.arguments if "Tensor" in str(argument.type)]
    tensors: list[torch.Tensor] = []
    structure: list[Any] = []  # for each tensor parameter: 1 for a tensor, 0 for None, a tuple of these for a list
    arguments = dict(sample.arguments)
    for name, operand in zip(parameters, sample.operands, strict=False):
        if isinstance(operand, list):
            structure.append(tuple(int(tensor is not None) for tensor in operand))
            tensors += [tensor for tensor in operand if tensor is not None]
        elif isinstance(operand, torch.Tensor):
            structure.append(1)
            tensors.append(operand)
        elif operand is None:
            structure.append(0)
        else:
            arguments[name] = operand
    has_plain_operands = all(entry == 1 for entry in structure)
    sorted_arguments = tuple(
        sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in arguments.items())
    )
    operand_metas = tuple(map(meta, tensors))
    call = Call(sample.op, operand_metas, sorted_arguments, (), None if has_plain_operands else tuple(structure))
    # Some ops write into operands although their schemas do not declare it.
    results = run_op(sample.op, call.slots, [tensor.clone() for tensor in tensors], call.argument)
    result_metas = tuple(None if result is None else meta(result) for result in results)
    return attrs.evolve(call, results=result_metas), tensors, results


AxisStrategies = Sequence[tuple[str, Strategy]]
"""(mesh axis, strategy) for each axis, outer axes first."""


def distribute(tensor: torch.Tensor, placements: Sequence[tuple[int, Placement]]) -> list[torch.Tensor]:
    """Return the local tensor of each rank, in row-major order.

    The tensor is distributed along the first axis, and each of its shards along the inner axes.

    Args:
        placements: (axis size, placement), outermost axis first.
    """
    if not placements:
        return [tensor]
    (count, placement), *inner_placements = placements
    local_tensors: list[torch.Tensor] = []
    for outer_shard in local_values(tensor, placement, count):
        local_tensors += distribute(outer_shard, inner_placements)
    return local_tensors


def collect(
    local: Sequence[torch.Tensor], placements: Sequence[tuple[int, Placement]], type_: LocalType
) -> torch.Tensor:
    """Return the tensor of global type `type_` with the local tensors `local` of all ranks: `distribute` inverted.

    The local tensors are collected along the inner axes first. Without placements, there is one rank.
    """
    if not placements:
        return local[0]
    (count, placement), *inner_placements = placements
    group_size = len(local) // count
    outer_shards = []
    for index in range(count):
        group = local[index * group_size : (index + 1) * group_size]
        outer_shards.append(collect(group, inner_placements, own_type(placement, *type_, count, index)))
    return placement.collect_as(outer_shards, *type_)


def local_type(type_: LocalType, strategies: AxisStrategies, result: int, mesh: Mesh, rank: int) -> LocalType:
    """Return the local type on `rank` of the result with index `result`, whose global type is `type_`."""
    coordinate = mesh.coordinate(rank)
    for axis, strategy in strategies:
        type_ = own_type(strategy.results[result], *type_, mesh.sizes[axis], coordinate[axis])
    return type_


def _evaluate_on_rank(value: Any, mesh: Mesh, rank: int) -> Any:
    """Return an argument with each `Local`, an integer that depends on the rank, replaced by its value on `rank`."""
    if isinstance(value, tuple):
        return tuple(_evaluate_on_rank(part, mesh, rank) for part in value)
    return value.evaluate(mesh, mesh.coordinate(rank)) if isinstance(value, Local) else value


def run_strategies(
    rule: OpRule, strategies: AxisStrategies, mesh: Mesh, local: list[list[torch.Tensor]]
) -> list[list[Any]]:
    """Run the strategies of all axes: an expansion, a local form, or the op itself on each rank.

    Args:
        local: [operand][rank], the local tensors.

    Returns: [result][rank], the local results; None for a result that is not a tensor.
    """
    if any(strategy.rewrite == "expand" for _, strategy in strategies):
        return _run_expansion(rule, strategies, mesh, local)
    form = form_of(rule, strategies, mesh, tuple(meta(tensors[0]) for tensors in local))
    if form is not None:
        return _run_form(form, mesh, local)
    outcomes = []
    for rank in range(mesh.world_size):
        arguments = dict(rule.call.arguments)
        first_result = rule.call.results[0]
        for name in rule.shape_arguments:
            assert first_result is not None
            arguments[name] = local_type((first_result.shape, first_result.dtype), strategies, 0, mesh, rank)[0]
        outcomes.append(run_op(rule.call.name, rule.call.slots, [tensors[rank] for tensors in local], arguments))
    return [list(result) for result in zip(*outcomes, strict=True)]


def form_of(rule: OpRule, strategies: AxisStrategies, mesh: Mesh, operands: tuple[TensorMeta, ...]) -> Expansion | None:
    """Return the local form of the op on rank 0 with its local `operands`; None if no strategy has a local form.

    Integers that depend on the rank are Locals in it, so other ranks can run it too.
    """
    used = [strategy for _, strategy in strategies]
    if all(strategy.rewrite not in ("local", SPLIT) for strategy in used):
        return None
    entries_of_factor: dict[int, list[tuple[str, Placement]]] = {}  # factor → (mesh axis, placement), outer axes first
    for axis, strategy in strategies:
        for factor in strategy.factors:
            entries_of_factor.setdefault(factor, []).append((axis, strategy.placement_of(factor)))
    shards = {factor: shard_of(rule.factors[factor].size, entries) for factor, entries in entries_of_factor.items()}
    # The factors of which a rank has several separate ranges.
    scattered = frozenset(factor for factor, shard in shards.items() if not shard.is_contiguous(mesh))
    return rule.local_form(shards, operands, Rank(mesh, mesh.coordinate(0)), scattered, used)


def _run_form(form: Expansion, mesh: Mesh, local: list[list[torch.Tensor]]) -> list[list[Any]]:
    """Run a local form op by op on all ranks, because some ops exchange values between ranks.

    Args:
        local: [operand][rank], the local tensors.

    Returns: [result][rank], the local results.
    """
    values: dict[Value, list[Any]] = {Value("operand", index): tensors for index, tensors in enumerate(local)}
    needed_ops = [_needed_ops(form, mesh, rank) for rank in range(mesh.world_size)]
    for number, op in enumerate(form.ops):
        operands = [values[value] for value in op.operands]
        if op.call.name in EXCHANGES:
            values[Value("op", number)] = EXCHANGES[op.call.name](*operands, mesh=mesh, **op.call.argument)
            continue
        if op.call.name in INDICES:
            shard: Any = op.call.argument["of"]
            ranges = [shard.ranges(mesh, mesh.coordinate(rank)) for rank in range(mesh.world_size)]
            values[Value("op", number)] = INDICES[op.call.name](ranges, *operands)
            continue
        run_ring_op = RING_OPS.get(op.call.name)
        results_of_ranks = []
        for rank in range(mesh.world_size):
            arguments = {name: _evaluate_on_rank(value, mesh, rank) for name, value in op.call.arguments}
            local_operands = [tensors[rank] for tensors in operands]
            if number not in needed_ops[rank]:
                results_of_ranks.append((None,) * len(op.call.results))
            elif run_ring_op:
                results_of_ranks.append(run_ring_op(*local_operands, **arguments))
            else:
                results_of_ranks.append(run_op(op.call.name, op.call.slots, local_operands, arguments))
        for index, tensors in enumerate(zip(*results_of_ranks, strict=True)):
            values[Value("op", number, index)] = list(tensors)
    return [[None] * mesh.world_size if value is None else values[value] for value in form.results]


def _needed_ops(form: Expansion, mesh: Mesh, rank: int) -> set[int]:
    """Return the indices of the ops of `form` that `rank` runs: all exchanges, and the ops whose values it uses.

    Of the two operands of `spmd.choose`, the rank uses one.
    """
    needed = {value.index for value in form.results if value is not None and value.source == "op"}
    for number, op in reversed([*enumerate(form.ops)]):
        if number not in needed and op.call.name not in EXCHANGES:
            continue
        needed.add(number)
        operands = op.operands
        if op.call.name == "spmd.choose":
            new, old = operands
            operands = (new,) if _evaluate_on_rank(op.call.argument["when"], mesh, rank) else (old,)
        needed |= {value.index for value in operands if value.source == "op"}
    return needed


def _run_expansion(
    rule: OpRule, strategies: AxisStrategies, mesh: Mesh, local: list[list[torch.Tensor]]
) -> list[list[Any]]:
    """Run the ops that an op expands to, each by its strategy, and reshard between them.

    Args:
        local: [operand][rank], the local tensors.

    Returns: [result][rank], the local results.
    """
    ((axis, strategy),) = strategies
    (factor,) = strategy.factors
    expansion = rule.expansion(factor)
    layout = rule.expansion_layout(factor, mesh.sizes[axis], operands=strategy.operands)
    assert layout is not None
    # Value → (its placement, its local tensors), and value → its global shape.
    values = {Value("operand", index): (strategy.operands[index], tensors) for index, tensors in enumerate(local)}
    shapes = {Value("operand", index): operand.shape for index, operand in enumerate(rule.call.operands)}
    for number, (op, inner_strategy) in enumerate(zip(expansion.ops, layout.strategies, strict=True)):
        operands = []
        for index, result_meta in enumerate(op.call.results):
            if result_meta:
                shapes[Value("op", number, index)] = result_meta.shape
        for value, required in zip(op.operands, inner_strategy.operands, strict=True):
            placement, tensors = values[value]
            if placement != required:
                assert R in (placement, required)
                tensors = required.distribute(placement.collect(tensors, shapes[value]), len(tensors), noise)
            operands.append(tensors)
        inner_rule = rule.rules.instantiate(op.call)
        assert inner_rule is not None
        results = run_strategies(inner_rule, [(axis, inner_strategy)], mesh, operands)
        for index, tensors in enumerate(results):
            values[Value("op", number, index)] = (inner_strategy.results[index], tensors)
    assert layout.results == strategy.results
    return [[None] * mesh.world_size if value is None else values[value][1] for value in expansion.results]


@attrs.frozen
class Case:
    """A sample that is ready to be run.

    Attributes:
        rule: the rule on its call.
        operands: its flat operands.
        expected: the results on one device; None for a result that is not compared.
        finite: whether all operands are finite. Then an infinite result must not become NaN.
    """

    rule: OpRule
    operands: list[torch.Tensor]
    expected: list[Any]
    finite: bool = False


FAILURES = RuntimeError, IndexError, ValueError, TypeError, AssertionError, SpmdirError
"""The exceptions that an unsound strategy may raise."""


def check_strategies(case: Case, strategies: AxisStrategies, mesh: Mesh) -> str | None:
    """Run `case` by strategies and return the first difference from one device; None if there is none.

    Raises:
        UnsupportedError: a placement cannot represent the values of an operand.
    """
    rule, operands, expected = case.rule, case.operands, case.expected
    try:
        local_operands = []
        for index, tensor in enumerate(operands):
            placements = [(mesh.sizes[axis], strategy.operands[index]) for axis, strategy in strategies]
            local_operands.append(distribute(tensor, placements))
    except UnsupportedError:
        raise
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    try:
        results = run_strategies(rule, strategies, mesh, local_operands)
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    through_sums = not case.finite and any(_has_partial_sums(rule, strategy) for _, strategy in strategies)
    for index, (local_results, expected_result) in enumerate(zip(results, expected, strict=True)):
        if expected_result is None:
            continue
        placements = [(mesh.sizes[axis], strategy.results[index]) for axis, strategy in strategies]
        type_ = tuple(expected_result.shape), DTYPES_OF_TORCH[expected_result.dtype]
        for rank, shard in enumerate(local_results):
            shape, dtype = local_type(type_, strategies, index, mesh, rank)
            if tuple(shard.shape) != shape:
                return f"result {index} of rank {rank} has shape {tuple(shard.shape)}, not {shape}"
            if shard.dtype != TORCH_DTYPES[dtype]:
                return f"result {index} has type {shard.dtype}, not {TORCH_DTYPES[dtype]}"
        fault = difference(collect(local_results, placements, type_), expected_result, through_sums)
        if fault:
            return f"result {index} {fault}"
    return None


def _has_partial_sums(rule: OpRule, strategy: Strategy) -> bool:
    """Return whether a strategy adds or multiplies partial values."""
    if strategy.rewrite == SPLIT and rule.factors[strategy.factors[0]].kind == "sum":
        return True
    return any(map(is_sum_or_product, (*strategy.operands, *strategy.results)))


@attrs.frozen
class Verdict:
    """The result of running a sample by strategies.

    Attributes:
        strategy: the strategies, as text.
        mesh: the sizes of the mesh axes, as text.
        fault: the difference from one device; None if there is none.
        is_run: whether it was run. This is false if a placement cannot represent the values of an operand.
        texts: the strategies that are written as text.
    """

    strategy: str
    mesh: str
    fault: str | None
    is_run: bool = True
    texts: tuple[TextStrategy, ...] = ()


def prepare(sample: Sample, rules: RuleSet) -> Case:
    """Run `sample` on one device, and return it as a case for its rule.

    Raises:
        RuleError: no rule applies to the call.
    """
    call, operands, expected = call_of(sample)
    rule = rules.instantiate(call)
    if rule is None:
        raise rules.missing_rule_error(sample.op)
    return Case(rule, operands, expected if sample.compare else [None] * len(expected))


def axis_verdicts(case: Case, counts: Sequence[int], plugins: Sequence[Placement] = ()) -> Iterator[Verdict]:
    """Yield a verdict for each strategy of `case` on an axis of each of `counts` ranks.

    Strategies with routed placements are left out: a single op has no route that determines the positions of ranks.

    Args:
        plugins: if not empty, only the strategies that these placements add are run.
    """
    for count in counts:
        for strategy in strategies_of(case.rule, count, plugins):
            if _is_routed(strategy):
                continue
            yield judge(case, [("x", strategy)], Mesh({"x": count}))


def strategies_of(rule: OpRule, count: int, plugins: Sequence[Placement] = ()) -> tuple[Strategy, ...]:
    """Return the strategies on an axis of `count` ranks, with those that split a product.

    Args:
        plugins: if not empty, return only the strategies that these placements add.
    """
    strategies = rule.strategies(count)
    if not plugins:
        return (*strategies, *rule.split_strategies(count))
    return rule.strategies(count, placements=tuple(plugins))[len(strategies) :]  # those of plug-ins come last


def judge(case: Case, strategies: AxisStrategies, mesh: Mesh) -> Verdict:
    """Run `case` by `strategies`, one for each axis of `mesh`, and compare the results with those of one device.

    If an operand is partial, the case is run twice, with different random partial values.
    """
    text = " and ".join(str(strategy) for _, strategy in strategies)
    operand_placements = [placement for _, strategy in strategies for placement in strategy.operands]
    is_partial = any(placement.trait == "partial" for placement in operand_placements)
    fault, is_run = None, False
    for draw in range(2 if is_partial else 1):
        seed(case.rule.call.name, text, mesh.world_size, draw)
        try:
            fault = fault or check_strategies(case, strategies, mesh)
            is_run = True
        except UnsupportedError:  # a placement cannot represent the values
            continue
    texts = tuple(strategy.text for _, strategy in strategies if strategy.text is not None)
    return Verdict(text, " x ".join(map(str, mesh.sizes.values())), fault, is_run, texts)


def are_compatible(
    rule: OpRule, strategies: Sequence[Strategy], counts: Sequence[int], plugins: Sequence[Placement] = ()
) -> bool:
    """Return whether a well-typed program may combine these strategies, one for each axis, outer axes first.

    The rule must allow the shards of all factors, and no value may be partial by two kinds of reduction. Expansions are
    excluded, because their ops are checked separately.

    Args:
        counts: the number of ranks of each axis.
    """
    if any(strategy.rewrite == "expand" for strategy in strategies) or _has_mixed_kinds(strategies):
        return False
    axes = list(zip(strategies, counts, strict=True))
    for index, (strategy, count) in enumerate(axes):
        counts_of_other_axes = shard_counts(axes[:index] + axes[index + 1 :])
        if strategy not in rule.strategies(count, counts_of_other_axes, tuple(plugins)):
            return False
    return True


def _has_mixed_kinds(strategies: Sequence[Strategy]) -> bool:
    """Return whether two axes have partial placements that do not commute, for one value."""
    placements_of_values = zip(*((*strategy.operands, *strategy.results) for strategy in strategies), strict=True)
    for placements in placements_of_values:
        kinds = {placement.kind for placement in placements if isinstance(placement, PartialPlacement)}
        if len(kinds) > 1:
            return True
    return False


def unsound(
    sample: Sample,
    rules: RuleSet,
    counts: Sequence[int] = (2, 3),
    pairs: bool = True,
    plugins: Sequence[Placement] = (),
) -> list[str]:
    """Return the faults of the strategies of `sample` on one axis of each of `counts` ranks.

    Args:
        pairs: whether to also run pairs of strategies on two axes of 2 ranks.
        plugins: if not empty, only the strategies that these placements add are run.
    """
    case = prepare(sample, rules)
    verdicts = list(axis_verdicts(case, counts, plugins))
    if pairs:
        mesh = Mesh({"x": 2, "y": 2})
        for pair in _pairs(case.rule, tuple(plugins)):
            verdicts.append(judge(case, list(zip("xy", pair, strict=True)), mesh))
    return [
        f"{sample.op} {case.rule.text()} on {verdict.mesh} ranks, {verdict.strategy}: {verdict.fault}"
        for verdict in verdicts
        if verdict.fault
    ]


def _is_routed(strategy: Strategy) -> bool:
    """Return whether a strategy has a routed placement."""
    return any(placement.is_routed for placement in (*strategy.operands, *strategy.results))


def _pairs(rule: OpRule, plugins: tuple[Placement, ...]) -> Iterator[tuple[Strategy, Strategy]]:
    """Yield compatible pairs of strategies that shard factors on two axes of 2 ranks, without routed placements.

    Args:
        plugins: if not empty, only pairs with a plug-in placement.
    """
    for outer in rule.strategies(2, placements=plugins):
        if not outer.factors:
            continue
        # Some inner strategies require the outer one: a minor factor requires that its major factor is sharded.
        for inner in rule.strategies(2, shard_counts([(outer, 2)]), plugins):
            if not inner.factors or _is_routed(outer) or _is_routed(inner):
                continue
            occurring = (*outer.operands, *outer.results, *inner.operands, *inner.results)
            if plugins and not plugins_among(occurring):
                continue
            if are_compatible(rule, (outer, inner), (2, 2), plugins):
                yield outer, inner
