"""Build the search problem of a function, with a node for each argument, op, constraint and result."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.propagation.kept_values import KeptValues
from spmdir.analysis.propagation.op_strategies import OpStrategies, rules_of
from spmdir.analysis.propagation.plugin_candidates import (
    Candidates,
    candidates_of_node,
    find_candidates,
    offered_placements,
)
from spmdir.analysis.propagation.uneven_batch import Batch
from spmdir.analysis.propagation.wide_sums import find_unreduced
from spmdir.analysis.routes import mixing_ops
from spmdir.analysis.type_check import rule_of
from spmdir.core.dtype import COMPLEX_F64, F64, I1
from spmdir.core.errors import UnsupportedError, warn
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import plugins
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import is_sized, meta_of
from spmdir.dialects.locations import location_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.size_ops import SizeOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, layout_sources, sharding_of
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule, RuleSet
from spmdir.search.kernels import Step, works
from spmdir.search.problem import Annotation, AxisPlacements, Node, Problem, StrategySource, tied
from spmdir.search.roofline import NO_WORK, Work, input_work

DOUBLE = (F64, COMPLEX_F64)
"""The double-precision element types. If inputs have them, results are compared closely. Then a sum in a narrower type,
such as a norm in f32, is not split over ranks, because another order of additions would be visible. Scalar inputs do
not count: rates and counts of updates are in double precision in every model."""

Maker = SSAValue | ValueOp | int
"""What a node is made from: a function argument, an op, or the index of a function result."""


def build_problem(
    function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology, apart: tuple[str, ...] = ()
) -> tuple[list[Maker], Problem]:
    """Return the maker of each node, and the search problem of a function.

    Nodes are the arguments, then the ops, constants and constraints in program order, then the results. Ops on sizes
    have no node. An op without a rule causes a warning.

    Args:
        apart: axes along which values with symbolic sizes are sent only if it cannot be avoided.

    Raises:
        SpmdirError: propagation does not support an op; located.
    """
    values: dict[SSAValue, int] = {}  # value → its number
    metas: list[TensorMeta] = []
    # for each node, its kernel step, its source of strategies without work, and its maker
    steps: list[Step] = []
    source_of_node: list[StrategySource] = []
    makers: list[Maker] = []
    shared_sources: dict[tuple[StrategySource, Work], StrategySource] = {}
    strategies_of_key: dict[object, OpStrategies] = {}
    kept_shardings = KeptValues(function, mesh, rules).shardings
    double_values: set[SSAValue] = set()
    batch, mixing = Batch.of(function, apart), mixing_ops(function.body.block)

    def op_strategies(op: AtenOp) -> OpStrategies:
        """Return the strategies of an op. Equal calls share them."""
        kept_operands = tuple([kept_shardings.get(value) for value in op.tensors])
        if not any(kept_operands):
            kept_operands = ()
        kept_operands = op.required_shardings[0] or kept_operands
        of_double = not double_values.isdisjoint(op.tensors)
        rows = batch.rows(op)
        mixes_routes = op in mixing
        key = op.call(), op.shardings, kept_operands, of_double, rows, mixes_routes
        if key not in strategies_of_key:
            strategies = attrs.evolve(
                _op_strategies(op, mesh, rules, of_double, kept_operands),
                apart=apart,
                rows=rows,
                mixes_routes=mixes_routes,
            )
            if strategies.rule is None:
                return strategies  # not cached: each such op causes a warning
            strategies_of_key[key] = strategies
        return strategies_of_key[key]

    def add(maker: Maker, source: StrategySource, operands: Sequence[SSAValue], results: Sequence[SSAValue]) -> None:
        """Add a node, and number its results."""
        numbers = []
        for result in results:
            numbers.append(values.setdefault(result, len(metas)))
            metas.append(meta_of(result.type) or TensorMeta((), I1))
        source_of_node.append(source)
        rule = source.rule if isinstance(source, OpStrategies) else None
        name = maker.name if isinstance(maker, AtenOp) else ""
        steps.append(Step(rule, name, tuple([values[value] for value in operands]), tuple(numbers)))
        makers.append(maker)

    def make_node(source: StrategySource, step: Step, work: Work) -> Node:
        """Return a node with its work.

        Nodes with equal sources and work share one source object. Sources that differ in work alone share their lists
        of strategies, so these are computed once.
        """
        key = source, work
        if key not in shared_sources:
            equal_source = shared_sources.setdefault((source, NO_WORK), source)
            shared_sources[key] = equal_source.doing(work) if isinstance(equal_source, OpStrategies) else equal_source
        return Node(shared_sources[key], step.operands, step.results)

    for argument in function.args:
        meta = _meta(argument)
        source = Annotation(meta, sharding_of(argument), "input", input_work(meta))
        add(argument, source, (), (argument,))
        if meta.dtype in DOUBLE and meta.rank:
            double_values.add(argument)
    for op in function.body.block.ops:
        if isinstance(op, AtenOp):
            add(op, op_strategies(op), op.tensors, op.results)
        elif isinstance(op, ConstantOp):
            add(op, Annotation(_meta(op.results[0]), Sharding((), mesh.name), "input"), (), op.results)
        elif isinstance(op, (ConstraintOp, ReshardOp)):
            add(op, Annotation(_meta(op.results[0]), op.target, "constraint"), op.operands, op.results)
        elif isinstance(op, ValueOp) and not isinstance(op, SizeOp):
            raise UnsupportedError(
                f"'{op.name}' is the result of a later pass; run propagate before that pass", location_of(op)
            )
        if not double_values.isdisjoint(op.operands):
            double_values.update(op.results)
    tied_nodes: list[tuple[int, int]] = []
    likes = layout_sources(function)
    for index, value in enumerate(ir.terminator(function).operands):
        like = likes.get(index)
        if like is not None:
            tied_nodes.append((like, len(makers)))
        annotation = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        add(index, Annotation(_meta(value), annotation.data if annotation else None, "output"), (value,), ())
    nodes = tuple(map(make_node, source_of_node, steps, works(steps, metas, topology.costs is not None)))
    strategies_of_op = {
        maker: source
        for maker, source in zip(makers, source_of_node, strict=True)
        if isinstance(maker, AtenOp) and isinstance(source, OpStrategies)
    }
    unreduced = frozenset([values[value] for value in find_unreduced(function, strategies_of_op, mesh)])
    problem = Problem(mesh, tuple(metas), nodes, topology=topology, ties=unreduced)
    if apart:
        unsent = frozenset([number for value, number in values.items() if is_sized(value.type)])
        unsliced = frozenset([values[value] for value in batch.values if value in values])
        problem = attrs.evolve(problem, apart=apart, unsent=unsent, unsliced=unsliced)
    return makers, _with_candidates(tied(problem, tied_nodes))


_AxisEntries = tuple[tuple[str, Placement], ...]
"""Root axes, each with a placement."""


def _with_candidates(problem: Problem) -> Problem:
    """Return the problem with the candidate plug-in placements of its values on each axis; unchanged without any."""
    rules = rules_of(problem)
    annotations_by_node = [_annotated_placements(node.source, problem.mesh) for node in problem.nodes]
    axis_candidates: dict[str, Candidates] = {}
    for axis in _axes_with_candidates(problem, rules, annotations_by_node):
        annotated = [
            [placement for entry_axis, placement in entries if entry_axis == axis] for entries in annotations_by_node
        ]
        axis_candidates[axis] = find_candidates(problem, rules, annotated)
    if not axis_candidates:
        return problem
    nodes = tuple([_with_node_candidates(node, axis_candidates) for node in problem.nodes])
    placements = [placement for entries in annotations_by_node for _, placement in entries]
    for value_candidates in axis_candidates.values():
        placements += itertools.chain.from_iterable(value_candidates)
    return attrs.evolve(problem, nodes=nodes, plugin_placements=plugins(placements))


def _axes_with_candidates(
    problem: Problem, rules: Sequence[OpRule | None], annotations_by_node: Sequence[_AxisEntries]
) -> list[str]:
    """Return the root axes on which values may have plug-in placements.

    These are the axes with such an annotation, or all axes if a rule offers plug-in placements.
    """
    mesh = problem.mesh
    if any(any(offered_placements(node, rule, mesh)) for node, rule in zip(problem.nodes, rules, strict=True)):
        return list(dict.fromkeys(map(mesh.root_axis, mesh.axis_names)))
    return list(
        dict.fromkeys(axis for entries in annotations_by_node for axis, placement in entries if plugins([placement]))
    )


def _with_node_candidates(node: Node, axis_candidates: Mapping[str, Candidates]) -> Node:
    """Return the node with the candidates of its operands and results.

    Args:
        axis_candidates: axis → [value], the candidate plug-in placements.
    """
    placements_by_axis = [(axis, candidates_of_node(node, by_value)) for axis, by_value in axis_candidates.items()]
    plugin_placements = AxisPlacements(
        tuple((axis, placements) for axis, placements in placements_by_axis if placements)
    )
    return attrs.evolve(node, source=attrs.evolve(node.source, plugin_placements=plugin_placements))  # type: ignore


def _annotated_placements(source: StrategySource, mesh: Mesh) -> _AxisEntries:
    """Return (root axis, placement) for each entry of the user annotations of an op, input, constraint or output."""
    shardings = source.results if isinstance(source, OpStrategies) else (source.sharding,)  # type: ignore  # an Annotation
    return tuple((mesh.root_axis(axis), p) for sharding in shardings if sharding for axis, p in sharding.entries)


def _meta(value: SSAValue) -> TensorMeta:
    """Return the type of a tensor; raise UnsupportedError if the value is not a tensor of a known element type."""
    meta = meta_of(value.type)
    if meta is None:
        raise UnsupportedError(f"a value has type {value.type}; expected a tensor of a known element type")
    return meta


def _op_strategies(
    op: AtenOp, mesh: Mesh, rules: RuleSet, of_double: bool, kept_shardings: tuple[Sharding | None, ...]
) -> OpStrategies:
    """Return the strategies of an op.

    Args:
        of_double: whether the op depends on inputs in double precision.
        kept_shardings: for each operand, the sharding that the op must use, or None; () if none is kept.

    Raises:
        RuleError: the call does not match its rule; located.
    """
    rule = rule_of(op, rules)
    if rule is None:
        warn(f"'{op.name}' has no rule, so it runs replicated; give it one with --load-plugin", location_of(op))
    results = op.required_shardings[1]
    has_narrow_result = any(meta.dtype.is_inexact and meta.dtype not in DOUBLE for meta in op.metas if meta)
    return OpStrategies(
        rule,
        operands=len(op.tensors),
        results=results,
        work=NO_WORK,
        keep_sum_order=of_double and has_narrow_result,
        sizes=mesh.axes if any(results) or kept_shardings else (),
        kept_shardings=kept_shardings,
    )
