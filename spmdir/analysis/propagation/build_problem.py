"""Build the search problem of a function, with a node for each argument, op, constraint and result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.propagation.kept_values import KeptValues
from spmdir.analysis.propagation.op_strategies import OpStrategies
from spmdir.analysis.propagation.plugin_candidates import with_candidates
from spmdir.analysis.propagation.uneven_batch import Batch
from spmdir.analysis.propagation.wide_sums import find_unreduced
from spmdir.analysis.routes import mixing_ops
from spmdir.analysis.type_check import rule_of
from spmdir.core.dtype import COMPLEX_F64, F64, I1
from spmdir.core.errors import UnsupportedError, warn
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import is_sized, meta_of
from spmdir.dialects.caches import cache_versions
from spmdir.dialects.locations import location_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.size_ops import SizeOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, layout_sources, sharding_of
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.search.kernels import Step, works
from spmdir.search.problem import Annotation, Node, Problem, StrategySource, tied
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

    The maker of a node is the argument or op that the node represents, or the index of the function result. Nodes are
    the arguments, then the ops, constants and constraints in program order, then the results. Ops on sizes have no
    node. An op without a rule causes a warning.

    Args:
        apart: axes along which values with symbolic sizes are sent only if it cannot be avoided.

    Raises:
        SpmdirError: propagation does not support an op; located.
    """
    builder = _ProblemBuilder(function, mesh, rules, apart)
    for argument in function.args:
        builder.add_argument(argument)
    for op in function.body.block.ops:
        builder.add_op(op)
    tied_nodes: list[tuple[int, int]] = []  # (argument, result) with the same placement
    argument_like_result = layout_sources(function)
    for index, value in enumerate(ir.terminator(function).operands):
        argument_index = argument_like_result.get(index)
        if argument_index is not None:
            tied_nodes.append((argument_index, len(builder.makers)))
        builder.add_result(index, value)
    problem = builder.problem(topology)
    return builder.makers, with_candidates(tied(problem, tied_nodes))


class _ProblemBuilder:
    """Collects the nodes of a function, in program order.

    Args:
        apart: as for `build_problem`.

    Attributes:
        makers: [node], its argument, op or index of a result.
        sources: [node], its strategies, without work.
        steps: [node], its kernel step, from which its work is computed.
        numbers: value of the function → value of the problem.
        metas: [value of the problem], its type.
        double_values: the values that depend on tensor arguments in double precision.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet, apart: tuple[str, ...]):
        self.function, self.mesh, self.rules, self.apart = function, mesh, rules, apart
        self.makers: list[Maker] = []
        self.sources: list[StrategySource] = []
        self.steps: list[Step] = []
        self.numbers: dict[SSAValue, int] = {}
        self.metas: list[TensorMeta] = []
        self.double_values: set[SSAValue] = set()
        self._kept_shardings = KeptValues(function, mesh, rules).shardings
        self._batch, self._mixing = Batch.of(function, apart), mixing_ops(function.body.block)
        self._strategies_by_key: dict[object, OpStrategies] = {}
        self._shared_sources: dict[tuple[StrategySource, Work], StrategySource] = {}

    def add_argument(self, argument: SSAValue) -> None:
        """Add the node of an argument of the function."""
        meta = _meta(argument)
        self._add(argument, Annotation(meta, sharding_of(argument), "input", input_work(meta)), (), (argument,))
        if meta.dtype in DOUBLE and meta.rank:
            self.double_values.add(argument)

    def add_op(self, op: Operation) -> None:
        """Add the node of an op; none for an op on sizes or a return.

        Raises:
            UnsupportedError: the op is the result of a later pass; located.
        """
        if isinstance(op, AtenOp):
            self._add(op, self._strategies_of(op), op.tensors, op.results)
        elif isinstance(op, ConstantOp):
            self._add(op, Annotation(_meta(op.results[0]), Sharding((), self.mesh.name), "input"), (), op.results)
        elif isinstance(op, (ConstraintOp, ReshardOp)):
            self._add(op, Annotation(_meta(op.results[0]), op.target, "constraint"), op.operands, op.results)
        elif isinstance(op, ValueOp) and not isinstance(op, SizeOp):
            raise UnsupportedError(
                f"found '{op.name}', which a later pass creates; expected a program before that pass: run "
                "propagate first",
                location_of(op),
            )
        if not self.double_values.isdisjoint(op.operands):
            self.double_values.update(op.results)

    def add_result(self, index: int, value: SSAValue) -> None:
        """Add the node of a result of the function, whose user annotation is an attribute of the function."""
        annotation = function_attrs(self.function, "res_attrs", index).get("spmd.sharding")
        self._add(index, Annotation(_meta(value), annotation.data if annotation else None, "output"), (value,), ())

    def problem(self, topology: Topology) -> Problem:
        """Return the problem of all added nodes, with the work of each.

        No reshard may move a partial sum before a cast with `spmd.cast_first`, nor a version of a cache: these values
        are the `ties` of the problem. With axes `apart`, the values with symbolic sizes are `unsent`, and the values
        computed from the batch are `unsliced`; see `Problem`.
        """
        work_of_node = works(self.steps, self.metas, topology.costs is not None)
        nodes = tuple(map(self._node, self.sources, self.steps, work_of_node))
        strategies_of_op: dict[AtenOp, OpStrategies] = {}
        for maker, source in zip(self.makers, self.sources, strict=True):
            if isinstance(maker, AtenOp) and isinstance(source, OpStrategies):
                strategies_of_op[maker] = source
        unreduced = find_unreduced(self.function, strategies_of_op, self.mesh)
        versions = itertools.chain.from_iterable(versions for _, versions in cache_versions(self.function))
        ties = frozenset([self.numbers[value] for value in (*unreduced, *versions)])
        problem = Problem(self.mesh, tuple(self.metas), nodes, topology=topology, ties=ties)
        if not self.apart:
            return problem
        unsent = frozenset([number for value, number in self.numbers.items() if is_sized(value.type)])
        unsliced = frozenset([self.numbers[value] for value in self._batch.values if value in self.numbers])
        return attrs.evolve(problem, apart=self.apart, unsent=unsent, unsliced=unsliced)

    def _add(
        self, maker: Maker, source: StrategySource, operands: Sequence[SSAValue], results: Sequence[SSAValue]
    ) -> None:
        """Add a node, and number its results."""
        result_numbers = []
        for result in results:
            result_numbers.append(self.numbers.setdefault(result, len(self.metas)))
            # A result that is no tensor counts as a scalar of one byte.
            self.metas.append(meta_of(result.type) or TensorMeta((), I1))
        operand_numbers = tuple([self.numbers[value] for value in operands])
        rule = source.rule if isinstance(source, OpStrategies) else None
        name = maker.name if isinstance(maker, AtenOp) else ""
        self.steps.append(Step(rule, name, operand_numbers, tuple(result_numbers)))
        self.sources.append(source)
        self.makers.append(maker)

    def _strategies_of(self, op: AtenOp) -> OpStrategies:
        """Return the strategies of an op. Equal calls share them."""
        kept_by_values = tuple([self._kept_shardings.get(value) for value in op.tensors])
        # The shardings that the op itself requires of its operands go first.
        kept_operands = op.required_shardings[0] or (kept_by_values if any(kept_by_values) else ())
        of_double = not self.double_values.isdisjoint(op.tensors)
        rows, mixes_routes = self._batch.rows(op), op in self._mixing
        key = op.call(), op.shardings, kept_operands, of_double, rows, mixes_routes
        if key in self._strategies_by_key:
            return self._strategies_by_key[key]
        strategies = _op_strategies(op, self.mesh, self.rules, of_double, kept_operands)
        strategies = attrs.evolve(strategies, apart=self.apart, rows=rows, mixes_routes=mixes_routes)
        if strategies.rule is not None:  # each op without a rule causes a warning, so these are not shared
            self._strategies_by_key[key] = strategies
        return strategies

    def _node(self, source: StrategySource, step: Step, work: Work) -> Node:
        """Return a node with its work.

        Nodes with equal sources and work share one source object. Sources that differ only in work share their lists
        of strategies, so these are computed once.
        """
        key = source, work
        if key not in self._shared_sources:
            equal_source = self._shared_sources.setdefault((source, NO_WORK), source)
            if isinstance(equal_source, OpStrategies):
                equal_source = equal_source.with_work(work)
            self._shared_sources[key] = equal_source
        return Node(self._shared_sources[key], step.operands, step.results)


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
        warn(f"'{op.name}' has no rule, so it runs replicated; give it a rule with --load-plugin", location_of(op))
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
