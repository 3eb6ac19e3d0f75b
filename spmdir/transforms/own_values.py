"""Values of each rank's own batch: what is computed over a batch stays on its rank, and what is returned is averaged.

With batches of several sizes, a value of the global batch and the mean of the ranks' values differ. Data parallel
training, as with DDP and FSDP2, takes the mean. So along the axes of the batch, a sum over ranks that the program
computes with becomes so many times the rank's own sum, and whole results are averaged:

    %n = all_reduce %count on [dp] op sum      ->    %n = mul %count, 2          2 ranks along dp
    %loss = div %total, %n                           %loss = div %total, %n
    return %loss                                     %mean = all_reduce %loss on [dp] op avg
                                                     return %mean

Sums that are only returned, as those of gradients, stay: %total of all ranks over twice the own count is that mean.

A number that an op is given as the size of the batch is that of the rank's own batch too, as 8 here and 6 elsewhere:

    %n = add.Tensor %seen {other = 8}                %n = add.Tensor %seen {other = 8}
    return %n                                        %mean = all_reduce %n on [dp] op avg
                                                     return %mean
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_programs.trusted import trust
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import P
from spmdir.dialects import ir
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective, collective_class
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import take_name, text_name
from spmdir.dialects.values import is_given, sharding_of

_FACTORS: dict[str, Callable[[int], float]] = {
    "sum": float,
    "avg": lambda count: 1.0,
    "max": lambda count: 1.0,
    "min": lambda count: 1.0,
}
"""Reduction → by what the own value is multiplied, as though each of so many ranks had it."""


@attrs.frozen
class BatchSizes:
    """What depends on the size of the batch, in the program of one rank.

    Attributes:
        dims: name of a value → its dimensions that do.
        numbers: names of values, of a fixed shape, of ops that are given a number that does.
    """

    dims: Mapping[str, Set[int]]
    numbers: Set[str] = frozenset()


_REDUCE = collective_class("all_reduce")
"""The collective that reduces a value for all ranks."""


def keep_own_values(module: ModuleOp, axes: Sequence[str], sizes: BatchSizes, reduces_alone: bool = True) -> None:
    """Let ranks along `axes` compute with values of their own batches, in the program of one rank after localize.

    Args:
        sizes: what differs where batches do.
        reduces_alone: whether each rank computes with reductions of its own batch. Else what is reduced over ranks is
            that of all batches, and numbers that depend on sizes differ alone.

    Raises:
        UnsupportedError: ranks would have parts of each other's values, or a whole result has no mean; located.
    """
    function, mesh = ir.main_function(module), ir.mesh(module)
    _OwnValues(
        function, mesh, frozenset(part for axis in axes for part in mesh.parts(axis)), sizes, reduces_alone
    ).run()
    trust(function)


class _OwnValues:
    """Walks a function once.

    Attributes:
        of_batch: values computed from the inputs that are sharded along the axes, or from a size of the batch. Others
            are those of one device.
        own: those of them that are replicated along the axes, but differ between ranks.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, axes: frozenset[str], sizes: BatchSizes, reduces_alone: bool):
        self.function, self.mesh, self.axes, self.sizes = function, mesh, axes, sizes
        self.reduces_alone = reduces_alone
        given = [value for value in function.args if is_given(function, value.index)]
        self.of_batch: set[SSAValue] = {value for value in given if not self._is_whole(value)}
        self.own: set[SSAValue] = set()

    def run(self) -> None:
        for op in list(self.function.body.block.ops)[:-1]:
            if not self.of_batch.isdisjoint(op.operands):
                self.of_batch.update(op.results)
                self._visit(op)
            sized = [result for result in op.results if self._has_number(op, result)]
            self.of_batch.update(sized)
            self.own.update(filter(self._is_whole, sized))
        end = ir.terminator(self.function)
        for index, value in enumerate(end.operands):
            if value in self.own:
                end.operands[index] = self._average(value, end)

    def _visit(self, op: Operation) -> None:
        if not isinstance(op, Collective):
            if not self.own.isdisjoint(op.operands):
                # An op shards one thing along an axis: rows of the batch, if that is what an operand is sharded by.
                if not any(self._sharded_dims(operand) for operand in op.operands if operand in self.of_batch):
                    self._check_rows(op, (*op.operands, *op.results))
                self.own.update(filter(self._is_whole, op.results))
            return
        value, result, step = op.operands[0], op.results[0], op.step(self.mesh)
        changed = [axis for axis in self.mesh.axis_names if step.source[axis] != step.target[axis]]
        along = [axis for axis in changed if axis in self.axes]
        before, after = ({each[axis].trait for axis in along} for each in (step.source, step.target))
        if (before, after) == ({"partial"}, {"replicated"}):
            if self.reduces_alone and self._goes_on(result):
                self._reduce_alone(op, along, [axis for axis in changed if axis not in along])
        elif value not in self.own:
            return
        elif not along:
            self.own.add(result)
        elif after == {"partial"}:
            self._replace(op, self._scaled(value, along, step.target, op, is_inverse=True))
        elif after == {"shard"} and self._sharded_dims(result) <= self._batch_dims(result):
            return  # the rows of the rank's own batch
        elif after == {"shard"} and not self._goes_on(result):
            op.operands[0] = self._average(value, op)
        else:
            raise self._mixed(op, along)

    def _has_number(self, op: Operation, result: SSAValue) -> bool:
        """Return whether a value depends on the size of the batch by a number or by the length of an operand alone."""
        if isinstance(op, Collective) or self._batch_dims(result):
            return False
        return text_name(result) in self.sizes.numbers or any(
            self._batch_dims(operand) and self._is_whole(operand) for operand in op.operands
        )

    def _check_rows(self, op: Operation, values: Iterable[SSAValue]) -> None:
        if any(self._sharded_dims(value) - self._batch_dims(value) for value in values):
            raise self._mixed(op, [axis for axis in self.mesh.axis_names if axis in self.axes])

    def _mixed(self, op: Operation, along: Sequence[str]) -> UnsupportedError:
        return UnsupportedError(
            f"'{op.name}' shards along mesh axes [{', '.join(along)}] what differs between their ranks, which have "
            "batches of their own; let dynamic_shapes have the first dimension of the inputs too, or replicate the "
            "value along these axes",
            location_of(op),
        )

    def _sharded_dims(self, value: SSAValue) -> set[int]:
        """Return the dimensions of a value that the axes shard."""
        sharding = sharding_of(value)
        placed = sharding.entries if sharding is not None else ()
        return {placement.dim for axis, placement in placed if axis in self.axes and placement.dim is not None}

    def _batch_dims(self, value: SSAValue) -> Set[int]:
        return self.sizes.dims.get(text_name(value), frozenset())

    def _goes_on(self, value: SSAValue) -> bool:
        """Return whether anything but the end of the function uses a value."""
        end = ir.terminator(self.function)
        return any(use.operation is not end for use in value.uses)

    def _is_whole(self, value: SSAValue) -> bool:
        sharding = sharding_of(value)
        return sharding is not None and self.axes.isdisjoint(axis for axis, _ in sharding.entries)

    def _reduce_alone(self, op: Collective, along: Sequence[str], others: Sequence[str]) -> None:
        """Replace a reduction by that of the rank's own values along `along`, then by one along the other axes."""
        step = op.step(self.mesh)
        rest = Sharding([entry for entry in step.source.entries if entry[0] not in along], step.source.mesh)
        value = self._scaled(op.operands[0], along, rest, op)
        if others:
            reduction = step.source[others[0]].op
            reduced = _REDUCE.build(
                value, axes=tuple(others), reduction=reduction, sharding=step.target, mesh=self.mesh
            )
            Rewriter.insert_op(reduced, InsertPoint.before(op))
            value = reduced.results[0]
        self._replace(op, value)
        self.own.add(value)

    def _replace(self, op: Collective, value: SSAValue) -> None:
        op.results[0].replace_all_uses_with(value)
        take_name(value, op.results[0])
        Rewriter.erase_op(op)
        self.of_batch.add(value)

    def _scaled(
        self, value: SSAValue, along: Sequence[str], sharding: Sharding, before: Operation, is_inverse: bool = False
    ) -> SSAValue:
        """Return the own value of a rank as though all ranks along `along` had it: reduced, or left to be reduced."""
        factor = 1.0
        of_value = sharding if is_inverse else sharding_of(value) or sharding
        for axis in along:
            reduction = of_value[axis].op or ""
            if reduction not in _FACTORS:
                raise UnsupportedError(
                    f"a reduction by {reduction} on mesh axis '{axis}' cannot be computed by each rank for its own "
                    "batch; give all ranks batches of one size",
                    location_of(before),
                )
            factor *= _FACTORS[reduction](self.mesh.sizes[axis])
        return self._product(value, 1 / factor if is_inverse else factor, sharding, before)

    def _product(self, value: SSAValue, factor: float, sharding: Sharding, before: Operation) -> SSAValue:
        number = int(factor) if factor == int(factor) else factor
        product = op_class("aten.mul.Scalar").build(
            [value], [meta_of(value.type)], [sharding], before.location, other=number
        )
        Rewriter.insert_op(product, InsertPoint.before(before))
        return product.results[0]

    def _average(self, value: SSAValue, before: Operation) -> SSAValue:
        """Return the mean of a value over the ranks that have their own, for `before` to use."""
        meta, sharding = meta_of(value.type), sharding_of(value)
        assert meta is not None and sharding is not None  # it is whole
        if not meta.dtype.is_inexact:
            raise UnsupportedError(
                f"a result of type {meta.dtype} is computed from the batch of each rank, which has no mean; expected "
                "floats: make a buffer floating, or give an output an out-sharding",
                location_of(before if isinstance(value.owner, Block) else value.owner),
            )
        axes = [axis for axis in self.mesh.axis_names if axis in self.axes]
        partial = self._product(value, 1.0 / self.mesh.group_size(axes), _summed(sharding, axes), before)
        mean = _REDUCE.build(partial, axes=tuple(axes), reduction="sum", mesh=self.mesh)
        Rewriter.insert_op(mean, InsertPoint.before(before))
        return mean.results[0]


def _summed(sharding: Sharding, axes: Iterable[str]) -> Sharding:
    return Sharding((*sharding.entries, *((axis, P("sum")) for axis in axes)), sharding.mesh)
