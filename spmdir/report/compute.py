"""The compute costs of a decided program: torch ops, the reading of inputs, and local steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.op_seconds import ShardedType, op_work
from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective, SpmdOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.report.op_costs import INPUTS, MEASURED, OpCost
from spmdir.report.op_sums import Share
from spmdir.report.torch_ops import ABSENT, TorchOp, sharded_type, torch_ops
from spmdir.reshard.cost import sends_anything, step_collectives, step_cost
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.search.kernels import Step, works
from spmdir.search.roofline import Work, input_work


def compute_costs(function: FuncOp, mesh: Mesh, rules: RuleSet, topology: Topology) -> list[OpCost]:
    """Return the cost on the busiest rank of each op that takes time, of a decided function with global types."""
    program = _Program(function, mesh, rules)
    costs = []
    for value in program.inputs:
        sharded = sharded_type(value)
        work = op_work(input_work(sharded[0]), (), (sharded,), mesh)
        costs.append(_kernel_cost(text_name(value), INPUTS, _location(value, function), work, topology))
    for op, work in program.works(topology.costs is not None):
        local_work = op_work(work, op.needed, op.produced, mesh, topology.imbalance)
        costs.append(_kernel_cost(op.name, op.kind, op.location, local_work, topology))
    costs += [_local_step_cost(op, mesh, topology) for op in function.body.block.ops if isinstance(op, Collective)]
    return [cost for cost in costs if cost is not None and cost.seconds]


def _location(value: SSAValue, function: FuncOp) -> Location | None:
    """Return the location of a constant; for other values, that of the function."""
    return location_of(value.owner if isinstance(value.owner, ConstantOp) else function)


def _kernel_cost(name: str, kind: str, location: Location | None, work: Work, topology: Topology) -> OpCost:
    """Return the cost of an op whose kernels do `work` on a rank."""
    price = work.time(topology)
    bound = work.bound(topology) if price.place == topology.name else MEASURED
    share = Share(1, 0.0, price.seconds, (price.place,))
    return OpCost(name, kind, location, share, work.flops, work.traffic, bound)


def _local_step_cost(op: Collective, mesh: Mesh, topology: Topology) -> OpCost | None:
    """Return the cost of a local step, such as a slice; None for a step that sends bytes."""
    step, (meta, _) = op.step(mesh), sharded_type(op.operands[0])
    if sends_anything(step, meta.shape, mesh):
        return None
    price = step_cost(step, meta.shape, meta.dtype.itemsize, mesh, topology)
    collectives = step_collectives(step, meta.shape, meta.dtype.itemsize, mesh)
    traffic = 2 * sum(traffic.copied(sizes) for traffic, sizes in collectives)  # each byte is read and written
    is_memory_bound = 2 * traffic / topology.memory_bandwidth > price.seconds  # more than half of the time
    share = Share(1, 0.0, price.seconds, (topology.name,))
    name = text_name(op.results[0])
    return OpCost(name, op.name, location_of(op), share, 0.0, traffic, "memory" if is_memory_bound else "launch")


class _Program:
    """A function as steps of kernels, which the kernel model fuses and prices.

    Reshards and collectives are not steps: a result has the number of its operand. Results of the function are steps,
    because they are written to memory.

    Attributes:
        inputs: the arguments and constants.
        _metas: [number of a value], its global type.
        _numbers: value → its number in `_steps`.
        _ops: for each of `_steps`, its torch op; None for a step of an input, a result or another op.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet):
        """Add a step for each input, torch op and result of a decided function, in order."""
        ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
        self.inputs = [*function.args, *(op.results[0] for op in ops if isinstance(op, ConstantOp))]
        self._metas: list[TensorMeta] = []
        self._numbers: dict[SSAValue, int] = {}
        self._steps = [Step(None, "", (), (self._number(value),)) for value in self.inputs]
        self._ops: list[TorchOp | None] = [None] * len(self._steps)
        for op, torch_op in torch_ops(ops, mesh, rules):
            if isinstance(op, SpmdOp):
                self._numbers |= {result: self._number(value) for value, result in op.pairs}
            elif torch_op is not None:
                self._add_torch(torch_op)
            elif not isinstance(op, (ConstantOp, AtenOp)):
                self._add(Step(None, "", tuple(map(self._number, op.tensors)), tuple(map(self._number, op.results))))
        for value in ir.terminator(function).operands:
            self._add(Step(None, "", (self._number(value),), ()))

    def works(self, are_named: bool) -> Iterator[tuple[TorchOp, Work]]:
        """Yield each torch op with its work.

        Args:
            are_named: whether a work lists the ops of its kernels, to look up measured times.
        """
        for op, work in zip(self._ops, works(self._steps, self._metas, are_named), strict=True):
            if op is not None:
                yield op, work

    def _add_torch(self, op: TorchOp) -> None:
        """Append the step of a torch op."""
        operands = self._numbers_of(op.operands, op.needed)
        results = self._numbers_of(op.results, op.produced)
        self._add(Step(op.rule, op.kind, operands, results), op)

    def _add(self, step: Step, op: TorchOp | None = None) -> None:
        """Append a step, and the torch op that it belongs to."""
        self._steps.append(step)
        self._ops.append(op)

    def _numbers_of(self, values: Sequence[SSAValue | None], types: Sequence[ShardedType]) -> tuple[int, ...]:
        """Return the numbers of the operands or results of an op, whose types are `types`."""
        return tuple(self._number(value, meta) for value, (meta, _) in zip(values, types, strict=True))

    def _number(self, value: SSAValue | None, meta: TensorMeta | None = None) -> int:
        """Return the number of a value. A new value gets the next number, and so does each None, an absent value.

        Args:
            meta: the type of a new value; if None, it is read from the value.
        """
        if value is not None and value in self._numbers:
            return self._numbers[value]
        if meta is None and value is not None:
            meta = meta_of(value.type)
        self._metas.append(meta or ABSENT)
        number = len(self._metas) - 1
        if value is not None:
            self._numbers[value] = number
        return number
