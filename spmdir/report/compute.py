"""How long the ops of a decided program compute, by kind: torch ops, inputs read, and steps that send nothing."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.dtype import I1
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective, SpmdOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.passes.op_seconds import Laid, op_seconds
from spmdir.passes.type_check.type_check import rule_of
from spmdir.report.shares import Share
from spmdir.reshard.cost import sends_anything, step_cost
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.search.kernels import Step, works
from spmdir.search.work import Work, held

INPUTS = "inputs"
"""What the reading of inputs is called among the kinds of ops."""

ABSENT = TensorMeta((), I1)
"""What stands for a result that an op is asked not to make."""


def compute_shares(function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology) -> dict[str, Share]:
    """Return kind → what ops of it take on the busiest rank of a decided function of global types, longest first."""
    found: dict[str, Share] = {}

    def add(kind: str, seconds: float, price: str) -> None:
        found[kind] = found.get(kind, Share()) + Share(1, 0.0, seconds, (price,))

    program = _Program(function, rules)
    for value in program.inputs:
        meta, sharding = _laid(value)
        read = op_seconds(held(meta), (), ((meta, sharding),), mesh, topology)
        add(INPUTS, read.seconds, read.place)
    for op, work in program.works(topology.costs is not None):
        operands, results = (tuple(map(_laid, values)) for values in (op.tensors, op.results))
        spent = op_seconds(work, operands, results, mesh, topology)
        add(op.name, spent.seconds, spent.place)
    for op in function.body.block.ops:
        if isinstance(op, Collective):
            step, (meta, _) = op.step(mesh), _laid(op.operands[0])
            if not sends_anything(step, meta.shape, mesh):
                seconds = step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology).seconds
                add(op.name, seconds, topology.name)
    spent = {kind: share for kind, share in found.items() if share.seconds}
    return dict(sorted(spent.items(), key=lambda entry: -entry[1].seconds))


def _laid(value: SSAValue) -> Laid:
    meta, sharding = meta_of(value.type), sharding_of(value)
    if meta is None:
        return ABSENT, Sharding(())
    assert sharding is not None  # the program is decided
    return meta, sharding


class _Program:
    """A function as steps of kernels; reshards and collectives are looked through, as no step is there for them.

    Attributes:
        inputs: the arguments and constants.
    """

    def __init__(self, function: FuncOp, rules: RuleSet):
        ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
        self.inputs = [*function.args, *(op.results[0] for op in ops if isinstance(op, ConstantOp))]
        self._metas: list[TensorMeta] = []
        self._numbers: dict[SSAValue, int] = {}
        self._steps = [Step(None, "", (), (self._number(value),)) for value in self.inputs]
        self._ops: list[AtenOp | None] = [None] * len(self._steps)
        for op in ops:
            if isinstance(op, SpmdOp):
                self._numbers[op.results[0]] = self._number(op.operands[0])
            elif not isinstance(op, ConstantOp):
                self._add(op, rules)
        for value in ir.terminator(function).operands:  # what leaves the function is written
            self._steps.append(Step(None, "", (self._number(value),), ()))
            self._ops.append(None)

    def works(self, are_named: bool) -> Iterator[tuple[AtenOp, Work]]:
        """Yield each torch op with what it computes."""
        for op, work in zip(self._ops, works(self._steps, self._metas, are_named), strict=True):
            if op is not None:
                yield op, work

    def _add(self, op: ValueOp, rules: RuleSet) -> None:
        is_torch = isinstance(op, AtenOp)
        operands, results = (tuple(map(self._number, values)) for values in (op.tensors, op.results))
        self._steps.append(
            Step(rule_of(op, rules) if is_torch else None, op.name if is_torch else "", operands, results)
        )
        self._ops.append(op if is_torch else None)

    def _number(self, value: SSAValue) -> int:
        if value not in self._numbers:
            self._numbers[value] = len(self._metas)
            self._metas.append(meta_of(value.type) or ABSENT)
        return self._numbers[value]
