"""propagate: choose a sharding for every tensor value, by a search over the strategies of the ops' rules."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Literal

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.byte_size import Size, size_text
from spmdir.core.dtype import COMPLEX_F64, F64, I1
from spmdir.core.errors import RuleError, ShardingError, UnsupportedError, warn
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import R, plugins
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.sizes import SizeOp, sizes_op
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.syntax.context import IRContext, location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.passes.fusion.trace import remark
from spmdir.passes.options import Count
from spmdir.passes.preconditions import FunctionPass
from spmdir.passes.propagation.annotate import Maker, annotate
from spmdir.passes.propagation.noted_options import note_options
from spmdir.passes.propagation.objective import note_certificate, note_objective
from spmdir.passes.propagation.plugin_candidates import candidates, of_node
from spmdir.passes.propagation.shared_memory import views_of
from spmdir.passes.propagation.sub_axes import annotated_splits, asks_for_splits, wanted_splits
from spmdir.passes.type_check.type_check import reasons_text, rule_of
from spmdir.reshard.topology import DEFAULT, Topology, find_topology, with_costs
from spmdir.rules import OpRule, RuleSet, Strategy
from spmdir.rules.strategies.strategy import ShardCounts, shard_counts
from spmdir.search.budget import OverBudget, solve_within
from spmdir.search.joint_states import Unsolvable
from spmdir.search.kernels import Step, works
from spmdir.search.problem import (
    Annotation,
    Node,
    NodeStrategy,
    Problem,
    StrategySource,
    largest_part,
    parts_of,
    splits,
)
from spmdir.search.solve import Solution, solve
from spmdir.search.work import NO_WORK, Work, held

DOUBLE = (F64, COMPLEX_F64)
"""Element types in which results are compared closely. A narrower sum in a program that has them, such as a norm that
is always computed in f32, is not split: another order of additions would be visible in the result."""

_ADDING = ("sum", "avg", "product")


@attrs.frozen(cache_hash=True)
class OpStrategies:
    """The strategies of a torch op: its rule's strategies, or replicated if it has no rule.

    Attributes:
        rule: the instantiated rule; compared by identity, since instantiation is memoised.
        operands: the number of operands.
        results: the user annotation of each result, None where there is none.
        work: what the unsharded op computes.
        keep_sum_order: avoid strategies that add in another order than one device, unless there are no others.
        parts: the axes that are sub-axes; those of one axis shard a factor evenly together.
        sizes: those of all axes, if a result has a user annotation.
        plugin_placements: the plug-in placements that its values may have.
    """

    rule: OpRule | None = attrs.field(eq=id)
    operands: int
    results: tuple[Sharding | None, ...]
    work: Work
    keep_sum_order: bool = False
    parts: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    plugin_placements: tuple[Placement, ...] = ()
    _known: dict[object, tuple[NodeStrategy, ...]] = attrs.field(factory=dict, eq=False, init=False, repr=False)
    _made: dict[object, NodeStrategy] = attrs.field(factory=dict, eq=False, init=False, repr=False)

    @property
    def annotations(self) -> Collection[Sharding]:
        return [sharding for sharding in self.results if sharding is not None]

    @property
    def majors(self) -> Mapping[int, Collection[int]]:
        return self.rule.majors if self.rule is not None else {}

    def strategies(self, axis: str, count: int, sharded: ShardCounts) -> tuple[NodeStrategy, ...]:
        if self.rule is None:
            return (NodeStrategy((R,) * self.operands, (R,) * len(self.results)),)
        key = (axis if any(self.results) or axis in self.parts else "", count, sharded.key)
        if key not in self._known:
            self._known[key] = self._strategies(self.rule, axis, count, sharded)
        return self._known[key]

    def _strategies(self, rule: OpRule, axis: str, count: int, sharded: ShardCounts) -> tuple[NodeStrategy, ...]:
        fitting = [s for s in rule.strategies(count, sharded, self.plugin_placements) if self._gives(s, axis)]
        if not fitting and self.sizes:
            sharded = sharded.over(self._beside(rule, axis))
            fitting = [s for s in rule.strategies(count, sharded, self.plugin_placements) if self._gives(s, axis)]
        if self.keep_sum_order:
            fitting = [s for s in fitting if not self._reorders_a_sum(s)] or fitting
        fitting = [s for s in fitting if not self._idles(s, count, sharded)] or fitting
        if axis in self.parts:
            fitting = [s for s in fitting if all(splits(rule.factors[f].size, count, sharded.of(f)) for f in s.factors)]
        return tuple(self._strategy(s, count, sharded) for s in fitting)

    def _gives(self, strategy: Strategy, axis: str) -> bool:
        """Return whether the results of `strategy` on `axis` agree with the user annotations."""
        return not any(self.results) or all(
            wanted is None or axis in wanted.open_axes or wanted[axis] == placement
            for wanted, placement in zip(self.results, strategy.results, strict=True)
        )

    def _beside(self, rule: OpRule, axis: str) -> ShardCounts:
        """Return the number of shards of each factor by the axes other than `axis`, as far as user annotations tell."""
        beside: list[tuple[Strategy, int]] = []
        named = [a for annotation in self.results if annotation for a, _ in annotation.entries]
        others = [other for other in dict.fromkeys(named) if other != axis]
        sizes = dict(self.sizes)
        for _ in range(len(others)):
            for other in others:
                strategies = rule.strategies(sizes[other], shard_counts(beside), self.plugin_placements)
                strategies = [s for s in strategies if self._gives(s, other)]
                if strategies:
                    beside.append((strategies[0], sizes[other]))
                    others.remove(other)
                    break
        return shard_counts(beside)

    def doing(self, work: Work) -> OpStrategies:
        """Return this source for an op that does `work`, on which strategies, listed once, do not depend."""
        made = attrs.evolve(self, work=work)
        object.__setattr__(made, "_known", self._known)
        object.__setattr__(made, "_made", self._made)
        return made

    def on(self, mesh: Mesh) -> OpStrategies:
        """Return this source on a mesh that splits some axes."""
        results = tuple(sharding.refined(mesh) if sharding else None for sharding in self.results)
        return attrs.evolve(self, results=results, parts=parts_of(mesh), sizes=mesh.axes if any(results) else ())

    def _strategy(self, strategy: Strategy, count: int, sharded: ShardCounts) -> NodeStrategy:
        if not strategy.factors or self.rule is None:
            if strategy not in self._made:
                self._made[strategy] = NodeStrategy(strategy.operands, strategy.results)
            return self._made[strategy]
        factor = strategy.factors[0]
        size, before = self.rule.factors[factor].size, sharded.of(factor)
        fraction = largest_part(strategy.placement_of(factor), math.ceil(size / before), count)
        key = strategy, count, fraction
        if key not in self._made:
            expands = strategy.rewrite == "expand"
            self._made[key] = NodeStrategy(
                strategy.operands,
                strategy.results,
                strategy.factors,
                self._inner(factor) if expands else self._halos(factor),
                expands,
                fraction,
                strategy.factor_placements,
                strategy.text,
                self.rule.rotated(strategy, count),
            )
        return self._made[key]

    def _idles(self, strategy: Strategy, count: int, sharded: ShardCounts) -> bool:
        """Return whether the strategy shards a factor over more ranks than it has elements."""
        if not strategy.factors or self.rule is None:
            return False
        factors = self.rule.factors
        return any(factors[f].size < count * sharded.of(f) for f in strategy.factors)

    def _reorders_a_sum(self, strategy: Strategy) -> bool:
        """Return whether ranks may add in another order than one device.

        They do where they split the sum, unless one rank alone has what is added, as in a lookup; and kernels add the
        columns of a matrix in blocks, so that the order depends on how many there are.
        """
        rule = self.rule
        if not strategy.factors or rule is None:
            return False
        factor, adds = strategy.factors[0], any(p.op in _ADDING for p in strategy.results)
        if strategy.rewrite == "local":
            return rule.has_ring(strategy) or (adds and strategy.text is not None)
        if strategy.rewrite == "expand" or adds:
            return True
        summed = {f for f, one in enumerate(rule.factors) if one.kind in _ADDING and one.size > 1}
        orders = [[f for dim in dims for f in dim] for dims in rule.operand_dims]
        if rule.contracts:
            return bool(summed) and not all(factor in order for order in orders)
        return any(factor in order and summed & {*order[: order.index(factor)]} for order in orders)

    def _halos(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the halos that windows along `factor` exchange, priced as an all-reduce, which sends about as much."""
        assert self.rule is not None
        size = self.rule.layout.halo_bytes.get(factor, 0)
        if not size:
            return ()
        others = {f for dims in self.rule.operand_dims for d in dims for f in d} - {factor}
        return ((size, tuple(sorted(others))),)

    def _inner(self, factor: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        assert self.rule is not None
        reduced = self.rule.internal_reductions(factor)
        return tuple((r.meta.bytes, tuple(f for dim in r.dims for f in dim)) for r in reduced)


@dataclass(frozen=True)
class PropagatePass(FunctionPass):
    """Choose a sharding for every value. User annotations are hard constraints; reshards and partial values are
    priced."""

    name = "propagate"
    needs_numbers: ClassVar = False

    topology: str = DEFAULT.name
    """What the mesh runs on, a preset or a TOML file: how long computing and sending take."""
    costs: str = ""
    """A file of measured times, which come before those of the topology."""
    memory: Literal["auto", "least"] | Size | None = "auto"
    """What a rank may hold at once: a size, the topology's memory (`auto`), no limit (`none`) or the `least` found."""
    effort: Count = 100
    """Moves of local improvement tried on each two axes."""
    sub_axes: Literal["auto", "none"] = "auto"
    """`auto` splits mesh axes into sub-axes where views ask for it and it costs less; `none` never splits them."""
    missing_rule: Literal["warn", "error"] = "warn"
    """Whether an op without a rule runs replicated with a warning, or is an error."""
    certify: bool = False
    """Whether to print what any decision costs at the least, beside what was decided."""

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        mesh = ir.mesh(module)
        if self.missing_rule == "error":
            _reject_missing_rules(function, ctx.rules)
        with ir.collector_paused():
            topology = with_costs(find_topology(self.topology), self.costs)
            makers, problem, solution = self._decide(function, mesh, ctx, topology)
            objective = annotate(function, problem, makers, list(map(_rule, problem.nodes)), solution)
            note_objective(function, objective)
            if self.certify:
                _certify(function, problem, objective)
            for child in function.body.block.ops:
                if isinstance(child, SizeOp):
                    child.tell_axes()
            if sizes_op(module) is not None:
                note_options(function, self)

    def _decide(
        self, function: FuncOp, mesh: Mesh, ctx: IRContext, topology: Topology
    ) -> tuple[list[Maker], Problem, Solution]:
        """Return the makers of the search's nodes, its problem, and its solution: the strategy of each node on each
        axis.

        Axes are split as in the user annotations; then also as views ask for, if that costs less.
        """
        annotated = _annotated_mesh(function, mesh)
        makers, problem = build_problem(function, mesh, ctx.rules, topology)
        problem = attrs.evolve(problem, collectives=ctx.collectives).on(annotated)
        budget = _budget(self.memory, topology)
        views = cache(lambda: views_of(problem, list(map(_rule, problem.nodes))))

        def solved(problem: Problem) -> Solution:
            search = partial(solve, effort=self.effort)
            try:
                return solve_within(problem, budget, search, views)
            except OverBudget as error:
                if self.memory == "least":
                    return error.least
                raise _over_budget(error, budget, makers, problem, function) from None

        solution, unsolvable = None, None
        try:
            solution = solved(problem)
        except Unsolvable as error:
            unsolvable = error
        wider = wanted_splits(_split_weights(problem, solution), annotated) if self.sub_axes == "auto" else annotated
        if wider != annotated:
            # Plug-in placements that are not the same on sub-axes cannot be used with them.
            with contextlib.suppress(Unsolvable, ShardingError):
                finer = problem.on(wider)
                other = solved(finer)
                if (solution is None or other.cost < solution.cost) and _fits(finer, other.strategies):
                    return makers, finer, other
        if solution is None:
            assert unsolvable is not None
            raise _located(makers[unsolvable.node], unsolvable, problem)
        return makers, problem, solution


def _certify(function: FuncOp, problem: Problem, objective: float) -> None:
    """Note on the function how good a decision is that costs `objective`, and print it to stderr."""
    from spmdir.search.certificate.certificate import certify

    try:
        certificate = certify(problem, objective)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, location_of(function)) from None
    note_certificate(function, certificate)
    print(remark(str(certificate), location_of(function)), file=sys.stderr)


def _annotated_mesh(function: FuncOp, mesh: Mesh) -> Mesh:
    """Return `mesh` with the axes split that the shardings of the function split.

    Raises:
        ShardingError: they split an axis in incompatible ways; located.
    """
    attributes = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    attributes += [function_attrs(function, "res_attrs", i) for i in range(len(function.function_type.outputs))]
    shardings = [found["spmd.sharding"].data for found in attributes if "spmd.sharding" in found]
    shardings += [s for op in function.body.block.ops if isinstance(op, ValueOp) for s in op.shardings if s]
    try:
        return annotated_splits(shardings, mesh)
    except ShardingError as error:
        raise ShardingError(error.message, location_of(function)) from None


def _budget(memory: float | str | None, topology: Topology) -> float:
    """Return the bytes that a rank may hold at once, by the option `memory`."""
    named = {"auto": topology.memory, "least": 0.0}
    return math.inf if memory is None else named[memory] if isinstance(memory, str) else memory


def _over_budget(
    error: OverBudget, budget: float, makers: Sequence[Maker], problem: Problem, function: FuncOp
) -> ShardingError:
    """Return the error of a program that needs more memory than a rank has."""
    names = {
        value: text_name(maker if isinstance(maker, SSAValue) else maker.results[position])
        for maker, node in zip(makers, problem.nodes, strict=True)
        for position, value in enumerate(node.results)
        if not isinstance(maker, int)
    }
    largest = [
        f"{names[value]}{' resharded' if is_copy else ''} {size_text(size)}"
        for value, is_copy, size in error.held.live[:5]
    ]
    return ShardingError(
        f"a rank holds {size_text(error.held.peak_bytes)} at once under the decision that needs least, of these "
        f"{', '.join(largest)}; expected at most {size_text(budget)}, the option `memory` of propagate or the memory "
        "of its topology: give the program more ranks, shard its inputs, or raise the limit",
        location_of(function),
    )


def _rule(node: Node) -> OpRule | None:
    return node.source.rule if isinstance(node.source, OpStrategies) else None


def _split_weights(problem: Problem, solution: Solution | None) -> dict[tuple[OpRule, str], float]:
    """Return, per (rule of an op that may ask for splits, axis), the bytes of the values of ops that the axis does not
    shard or that reshard."""
    weights: dict[tuple[OpRule, str], float] = {}
    rules = list(map(_rule, problem.nodes))
    asking = {rule for rule in {*rules} if rule is not None and asks_for_splits(rule)}
    nodes = [(index, problem.nodes[index], rule) for index, rule in enumerate(rules) if rule in asking]
    for axis in problem.mesh.axis_names if nodes else ():
        chosen = solution.strategies[axis] if solution else ()
        moved = _moved(problem, chosen)
        for index, node, rule in nodes:
            values = (*node.operands, *node.results)
            settled = bool(chosen) and bool(chosen[index].factors) and moved.isdisjoint(values)
            if rule is not None and not settled:
                key = rule, problem.mesh.root_axis(axis)
                weights[key] = weights.get(key, 0.0) + sum(problem.values[value].bytes for value in values)
    return weights


def _moved(problem: Problem, strategies: Sequence[NodeStrategy]) -> set[int]:
    """Return the values that some node needs in another placement than they are made in."""
    made: dict[int, Placement] = {}
    moved: set[int] = set()
    for node, strategy in zip(problem.nodes, strategies, strict=False):
        for value, placement in zip(node.operands, strategy.operands, strict=True):
            if made[value] is not placement and made[value] != placement:
                moved.add(value)
        made.update(zip(node.results, strategy.results, strict=True))
    return moved


def _fits(problem: Problem, strategies: Mapping[str, Sequence[NodeStrategy]]) -> bool:
    """Return whether factors that several sub-axes of one axis shard are sharded evenly, as merged names require."""
    mesh = problem.mesh
    for index, node in enumerate(problem.nodes):
        rule = _rule(node)
        by_factor: dict[int, list[str]] = {}
        for axis, chosen in strategies.items():
            for factor in chosen[index].factors if rule is not None else ():
                by_factor.setdefault(factor, []).append(axis)
        for factor, axes in by_factor.items():
            assert rule is not None
            kin = len({mesh.root_axis(axis) for axis in axes}) < len(axes)
            if kin and rule.factors[factor].size % mesh.group_size(axes):
                return False
    return True


def build_problem(function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology) -> tuple[list[Maker], Problem]:
    """Return what makes each node of the search problem of a function, and the problem.

    Raises:
        SpmdirError: an op that propagation cannot decide; located.
    """
    values: dict[SSAValue, int] = {}
    metas: list[TensorMeta] = []
    steps: list[Step] = []
    found: list[StrategySource] = []
    makers: list[Maker] = []
    sources: dict[tuple[StrategySource, Work], StrategySource] = {}
    known: dict[object, OpStrategies] = {}

    def op_strategies(op: AtenOp) -> OpStrategies:
        key = op.call(), op.shardings
        if key not in known:
            made = _op_strategies(op, mesh, rules, double)
            if made.rule is None:
                return made  # each such op is warned about
            known[key] = made
        return known[key]

    def add(maker: Maker, source: StrategySource, operands: Sequence[SSAValue], results: Sequence[SSAValue]) -> None:
        numbers = []
        for result in results:
            numbers.append(values.setdefault(result, len(metas)))
            metas.append(meta_of(result.type) or TensorMeta((), I1))
        found.append(source)
        rule = source.rule if isinstance(source, OpStrategies) else None
        name = maker.name if isinstance(maker, AtenOp) else ""
        steps.append(Step(rule, name, tuple([values[value] for value in operands]), tuple(numbers)))
        makers.append(maker)

    def node(source: StrategySource, step: Step, work: Work) -> Node:
        key = source, work
        if key not in sources:  # equal ones list their strategies once
            first = sources.setdefault((source, NO_WORK), source)
            sources[key] = first.doing(work) if isinstance(first, OpStrategies) else first
        return Node(sources[key], step.operands, step.results)

    for argument in function.args:
        meta = _meta(argument)
        source = Annotation(meta, sharding_of(argument), "input", held(meta))
        add(argument, source, (), (argument,))
    double = any(meta.dtype in DOUBLE for meta in metas)
    for op in function.body.block.ops:
        if isinstance(op, AtenOp):
            add(op, op_strategies(op), op.tensors, op.results)
        elif isinstance(op, ConstantOp):
            add(op, Annotation(_meta(op.results[0]), Sharding((), mesh.name), "input"), (), op.results)
        elif isinstance(op, (ConstraintOp, ReshardOp)):
            add(op, Annotation(_meta(op.results[0]), op.target, "constraint"), op.operands, op.results)
        elif isinstance(op, ValueOp) and not isinstance(op, SizeOp):
            raise UnsupportedError(f"'{op.name}' is a decision already made; propagate runs before it", location_of(op))
    for index, value in enumerate(ir.terminator(function).operands):
        wanted = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        add(index, Annotation(_meta(value), wanted.data if wanted else None, "output"), (value,), ())
    nodes = tuple(map(node, found, steps, works(steps, metas, topology.costs is not None)))
    return makers, _with_candidates(Problem(mesh, tuple(metas), nodes, topology=topology))


def _with_candidates(problem: Problem) -> Problem:
    """Return `problem` with the plug-in placements that its values may have."""
    annotated = [_annotated_placements(node.source) for node in problem.nodes]
    if not any(map(plugins, annotated)):
        return problem
    found = candidates(problem, list(map(_rule, problem.nodes)), annotated)
    nodes = (attrs.evolve(n, source=attrs.evolve(n.source, plugin_placements=of_node(n, found))) for n in problem.nodes)  # type: ignore
    every = plugins(placement for placements in (*annotated, *found) for placement in placements)
    return attrs.evolve(problem, nodes=tuple(nodes), plugin_placements=every)


def _annotated_placements(source: StrategySource) -> tuple[Placement, ...]:
    """Return the placements in the user annotations of an op, input, constraint or output."""
    shardings = source.results if isinstance(source, OpStrategies) else (source.sharding,)  # type: ignore  # a Annotation
    return tuple(placement for sharding in shardings if sharding for _, placement in sharding.entries)


def _meta(value: SSAValue) -> TensorMeta:
    meta = meta_of(value.type)
    if meta is None:
        raise UnsupportedError(f"a value has type {value.type}; expected a tensor of a known element type")
    return meta


def _reject_missing_rules(function: FuncOp, rules: RuleSet) -> None:
    for op in function.body.block.ops:
        if isinstance(op, AtenOp) and rule_of(op, rules) is None:
            raise RuleError(f"'{op.name}' has no rule; give it one with --load-plugin", location_of(op))


def _op_strategies(op: AtenOp, mesh: Mesh, rules: RuleSet, double: bool) -> OpStrategies:
    rule = rule_of(op, rules)
    if rule is None:
        warn(f"'{op.name}' has no rule, so it runs replicated; give it one with --load-plugin", location_of(op))
    narrow = any(meta.dtype.is_inexact and meta.dtype not in DOUBLE for meta in op.metas if meta)
    sizes = mesh.axes if any(op.shardings) else ()
    return OpStrategies(rule, len(op.tensors), op.shardings, NO_WORK, double and narrow, (), sizes)


def _located(maker: Maker, error: Unsolvable, problem: Problem) -> ShardingError:
    if isinstance(maker, AtenOp):
        annotated = ", ".join(f"<{sharding}>" for sharding in maker.shardings if sharding)
        return ShardingError(
            f"'{maker.name}': no strategy of its rule gives {annotated or 'its values'} on axis '{error.axis}'"
            f"{_reasons(problem.nodes[error.node].source, error.axis, problem.mesh)}; "
            "give the sharding to a spmd.constraint on its result instead",
            location_of(maker),
        )
    return ShardingError(f"a value cannot be placed on axis '{error.axis}' beside its other partial placements")


def _reasons(source: StrategySource, axis: str, mesh: Mesh) -> str:
    """Return why the strategies are left out that user annotations may have asked for on `axis`."""
    if not isinstance(source, OpStrategies) or source.rule is None:
        return ""
    results = tuple(sharding.refined(mesh)[axis] if sharding else None for sharding in source.results)
    placed = ((None,) * source.operands + results)[: source.operands + len(source.rule.result_dims)]
    return reasons_text(source.rule.why_not(mesh.sizes[axis], placed, source.plugin_placements))
