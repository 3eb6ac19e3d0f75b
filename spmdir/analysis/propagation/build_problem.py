"""The search's problem of a function: a node for each argument, op, constraint and result."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.propagation.batch import Batch
from spmdir.analysis.propagation.kept import KeptValues
from spmdir.analysis.propagation.op_strategies import OpStrategies, rules_of
from spmdir.analysis.propagation.plugin_candidates import candidates, of_node, offered
from spmdir.analysis.propagation.wide_sums import unreduced
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
from spmdir.dialects.sizes import SizeOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, like_arguments, sharding_of
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.search.kernels import Step, works
from spmdir.search.problem import Annotation, AxisPlacements, Node, Problem, StrategySource, tied
from spmdir.search.work import NO_WORK, Work, input_work

DOUBLE = (F64, COMPLEX_F64)
"""Element types in which results are compared closely. A narrower sum of what is computed from inputs of them, such as
a norm that is always computed in f32, is not split: another order of additions would be visible in the result. Inputs
without dimensions do not count: rates and counts of updates are in double precision whatever a model computes in."""

Maker = SSAValue | ValueOp | int
"""The function argument, op or function result (by index) that a node of the search stands for."""


def build_problem(
    function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology, apart: tuple[str, ...] = ()
) -> tuple[list[Maker], Problem]:
    """Return what makes each node of the search problem of a function, and the problem.

    Args:
        apart: axes along which values with symbolic sizes are sent only if there is no other way.

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
    kept = KeptValues(function, mesh, rules).shardings
    double: set[SSAValue] = set()
    batch = Batch.of(function, apart)

    def op_strategies(op: AtenOp) -> OpStrategies:
        operands = tuple([kept.get(value) for value in op.tensors])
        operands = operands if any(operands) else ()
        of_double = not double.isdisjoint(op.tensors)
        rows = batch.rows(op)
        key = op.call(), op.shardings, operands, of_double, rows
        if key not in known:
            made = attrs.evolve(_op_strategies(op, mesh, rules, of_double, operands), apart=apart, rows=rows)
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
        source = Annotation(meta, sharding_of(argument), "input", input_work(meta))
        add(argument, source, (), (argument,))
        if meta.dtype in DOUBLE and meta.rank:
            double.add(argument)
    for op in function.body.block.ops:
        if isinstance(op, AtenOp):
            add(op, op_strategies(op), op.tensors, op.results)
        elif isinstance(op, ConstantOp):
            add(op, Annotation(_meta(op.results[0]), Sharding((), mesh.name), "input"), (), op.results)
        elif isinstance(op, (ConstraintOp, ReshardOp)):
            add(op, Annotation(_meta(op.results[0]), op.target, "constraint"), op.operands, op.results)
        elif isinstance(op, ValueOp) and not isinstance(op, SizeOp):
            raise UnsupportedError(f"'{op.name}' is a decision already made; propagate runs before it", location_of(op))
        if not double.isdisjoint(op.operands):
            double.update(op.results)
    alike: list[tuple[int, int]] = []
    likes = like_arguments(function)
    for index, value in enumerate(ir.terminator(function).operands):
        like = likes.get(index)
        alike += [] if like is None else [(like, len(makers))]
        wanted = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        add(index, Annotation(_meta(value), wanted.data if wanted else None, "output"), (value,), ())
    nodes = tuple(map(node, found, steps, works(steps, metas, topology.costs is not None)))
    decided = {
        m: s for m, s in zip(makers, found, strict=True) if isinstance(m, AtenOp) and isinstance(s, OpStrategies)
    }
    fixed = frozenset([values[value] for value in unreduced(function, decided, mesh)])
    problem = Problem(mesh, tuple(metas), nodes, topology=topology, ties=fixed)
    if apart:
        unsent = frozenset([at for value, at in values.items() if is_sized(value.type)])
        unsliced = frozenset([values[value] for value in batch.values if value in values])
        problem = attrs.evolve(problem, apart=apart, unsent=unsent, unsliced=unsliced)
    return makers, _with_candidates(tied(problem, alike))


def _with_candidates(problem: Problem) -> Problem:
    """Return `problem` with the plug-in placements that its values may have on each axis."""
    mesh, rules = problem.mesh, rules_of(problem)
    annotated = [_annotated_placements(node.source, mesh) for node in problem.nodes]
    axes = dict.fromkeys(axis for entries in annotated for axis, placement in entries if plugins([placement]))
    if any(any(offered(node, rule, mesh)) for node, rule in zip(problem.nodes, rules, strict=True)):
        axes = dict.fromkeys(map(mesh.root_axis, mesh.axis_names))
    if not axes:
        return problem
    found = {axis: candidates(problem, rules, [[p for a, p in of if a == axis] for of in annotated]) for axis in axes}

    def of(node: Node) -> AxisPlacements:
        by_axis = ((axis, of_node(node, on_axis)) for axis, on_axis in found.items())
        return AxisPlacements(tuple((axis, placements) for axis, placements in by_axis if placements))

    nodes = (attrs.evolve(n, source=attrs.evolve(n.source, plugin_placements=of(n))) for n in problem.nodes)  # type: ignore
    named = (placement for entries in annotated for _, placement in entries)
    made = (placement for on_axis in found.values() for of_value in on_axis for placement in of_value)
    return attrs.evolve(problem, nodes=tuple(nodes), plugin_placements=plugins((*named, *made)))


def _annotated_placements(source: StrategySource, mesh: Mesh) -> tuple[tuple[str, Placement], ...]:
    """Return (root axis, placement) of the user annotations of an op, input, constraint or output."""
    shardings = source.results if isinstance(source, OpStrategies) else (source.sharding,)  # type: ignore  # a Annotation
    return tuple((mesh.root_axis(axis), p) for sharding in shardings if sharding for axis, p in sharding.entries)


def _meta(value: SSAValue) -> TensorMeta:
    meta = meta_of(value.type)
    if meta is None:
        raise UnsupportedError(f"a value has type {value.type}; expected a tensor of a known element type")
    return meta


def _op_strategies(
    op: AtenOp, mesh: Mesh, rules: RuleSet, of_double: bool, kept: tuple[Sharding | None, ...]
) -> OpStrategies:
    rule = rule_of(op, rules)
    if rule is None:
        warn(f"'{op.name}' has no rule, so it runs replicated; give it one with --load-plugin", location_of(op))
    narrow = any(meta.dtype.is_inexact and meta.dtype not in DOUBLE for meta in op.metas if meta)
    sizes = mesh.axes if any(op.shardings) or kept else ()
    return OpStrategies(rule, len(op.tensors), op.shardings, NO_WORK, of_double and narrow, (), sizes, kept=kept)
