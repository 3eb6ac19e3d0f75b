"""Compute with the batch of each rank instead of the global batch, and average the results, as DDP and FSDP2 do.

If the batches of ranks differ in size, a mean over the global batch differs from the mean of the ranks' means. Data
parallel training uses the mean of the ranks' means. So along the axes of the batch, a sum over ranks that the program
computes with becomes the sum of the rank's batch, times the number of ranks. Replicated results are averaged:

    %n = all_reduce %count on [dp] op sum      ->    %n = mul %count, 2          2 ranks along dp
    %loss = div %total, %n                           %loss = div %total, %n
    return %loss                                     %mean = all_reduce %loss on [dp] op avg
                                                     return %mean

Sums that are only returned, such as those of gradients, are unchanged: the sum over ranks of %total / (2 · %count) is
the mean of the ranks' means.

If an argument of an op is the size of the batch, it is the size of the rank's batch too: 8 here, and 6 on another rank.
The result is averaged:

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

from spmdir.analysis.local_programs.type_check_cache import trust
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import P
from spmdir.dialects import ir
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective, collective_class
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import copy_name, text_name
from spmdir.dialects.values import is_call_input, sharding_of

_FACTORS: dict[str, Callable[[int], float]] = {
    "sum": float,
    "avg": lambda count: 1.0,
    "max": lambda count: 1.0,
    "min": lambda count: 1.0,
}
"""Reduction → number of ranks → the factor from the value of one rank to the reduction of equal values of all ranks."""


@attrs.frozen
class BatchSizes:
    """The parts of a local program that depend on the size of the batch.

    Attributes:
        dims: name of a value → its dimensions that depend on the size.
        numbers: names of the results of ops with an argument that depends on the size, though their shapes do not.
    """

    dims: Mapping[str, Set[int]]
    numbers: Set[str] = frozenset()


_REDUCE = collective_class("all_reduce")
"""The collective that reduces a value for all ranks."""


def keep_own_values(module: ModuleOp, axes: Sequence[str], sizes: BatchSizes, reduces_alone: bool = True) -> None:
    """Change a localized program: ranks along `axes` compute with their own batches.

    Args:
        sizes: the parts of the program that depend on the size of the batch.
        reduces_alone: whether each rank computes with reductions over its own batch. Otherwise reductions are over all
            batches, and only arguments of ops that depend on the size differ between ranks.

    Raises:
        UnsupportedError: a value that differs between ranks is sharded over them, or a replicated result has no mean;
            located.
    """
    function, mesh = ir.main_function(module), ir.mesh(module)
    _OwnValues(
        function, mesh, frozenset(part for axis in axes for part in mesh.parts(axis)), sizes, reduces_alone
    ).run()
    trust(function)


class _OwnValues:
    """The state of the walk that changes a function.

    In the example of the module, `own` contains the first %n, which each rank now computes from its batch, and %loss.

    Attributes:
        of_batch: values that depend on the inputs sharded along the axes, or on the size of the batch. Other values are
            equal to those of one device.
        own: the values among these that have a replicated sharding along the axes, but differ between ranks.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, axes: frozenset[str], sizes: BatchSizes, reduces_alone: bool):
        self.function, self.mesh, self.axes, self.sizes = function, mesh, axes, sizes
        self.reduces_alone = reduces_alone
        inputs = [value for value in function.args if is_call_input(function, value.index)]
        self.of_batch: set[SSAValue] = {value for value in inputs if not self._is_whole(value)}
        self.own: set[SSAValue] = set()

    def run(self) -> None:
        """Change the function. Own values that it returns are averaged over the ranks."""
        for op in list(self.function.body.block.ops)[:-1]:
            if not self.of_batch.isdisjoint(op.operands):
                self.of_batch.update(op.results)
                self._visit(op)
            results_with_number = [result for result in op.results if self._has_number(op, result)]
            self.of_batch.update(results_with_number)
            self.own.update(filter(self._is_whole, results_with_number))
        end = ir.terminator(self.function)
        for index, value in enumerate(end.operands):
            if value in self.own:
                end.operands[index] = self._average(value, end)

    def _visit(self, op: Operation) -> None:
        """Update `own` for an op on values of the batch, and change a collective along the axes.

        - An all-reduce becomes a reduction of the rank's own values, if an op uses the result.
        - A partition of an own value becomes a product with a number, such that the reduction of equal values of all
          ranks would be this value.
        - A slice of an own value is kept if it selects rows of the batch. If only the function returns the slice, the
          value is averaged before the slice.

        Raises:
            UnsupportedError: another collective along the axes has an own value as operand; located.
        """
        if not isinstance(op, Collective):
            if not self.own.isdisjoint(op.operands):
                batch_operands = [operand for operand in op.operands if operand in self.of_batch]
                # If one of them is sharded along the axes, the op is sharded by rows of the batch.
                if not any(map(self._sharded_dims, batch_operands)):
                    self._check_rows(op, (*op.operands, *op.results))
                self.own.update(filter(self._is_whole, op.results))
            return
        value, result, step = op.operands[0], op.results[0], op.step(self.mesh)
        changed_axes = [axis for axis in self.mesh.axis_names if step.source[axis] != step.target[axis]]
        batch_axes = [axis for axis in changed_axes if axis in self.axes]
        old_traits = {step.source[axis].trait for axis in batch_axes}
        new_traits = {step.target[axis].trait for axis in batch_axes}
        if (old_traits, new_traits) == ({"partial"}, {"replicated"}):  # an all-reduce
            if self.reduces_alone and self._is_used_inside(result):
                self._reduce_own_value(op, batch_axes, [axis for axis in changed_axes if axis not in batch_axes])
        elif value not in self.own:
            return
        elif not batch_axes:
            self.own.add(result)
        elif new_traits == {"partial"}:  # a partition
            self._replace(op, self._scale(value, batch_axes, step.target, op, is_inverse=True))
        elif new_traits == {"shard"} and self._sharded_dims(result) <= self._batch_dims(result):
            return  # the slice has the rows of the rank's batch
        elif new_traits == {"shard"} and not self._is_used_inside(result):
            op.operands[0] = self._average(value, op)
        else:
            raise self._mixed_error(op, batch_axes)

    def _has_number(self, op: Operation, result: SSAValue) -> bool:
        """Return whether a value depends on the size of the batch, but none of its dimensions does.

        An example is the number of rows that divides a sum of losses. The op has the size as an argument, or has an
        operand which is replicated and as long as the batch.
        """
        if isinstance(op, Collective) or self._batch_dims(result):
            return False
        return text_name(result) in self.sizes.numbers or any(
            self._batch_dims(operand) and self._is_whole(operand) for operand in op.operands
        )

    def _check_rows(self, op: Operation, values: Iterable[SSAValue]) -> None:
        """Raise UnsupportedError if the axes shard a dimension of `values` that is not the rows of the batch."""
        if any(self._sharded_dims(value) - self._batch_dims(value) for value in values):
            raise self._mixed_error(op, [axis for axis in self.mesh.axis_names if axis in self.axes])

    def _mixed_error(self, op: Operation, batch_axes: Sequence[str]) -> UnsupportedError:
        """Return the error for an op that shards a value along `batch_axes`, though the value differs between ranks."""
        return UnsupportedError(
            f"'{op.name}' shards a value along mesh axes [{', '.join(batch_axes)}], but the value differs "
            "between the ranks, because each has a separate batch; expected an equal value on these ranks: "
            "mark the first dimension of all inputs in dynamic_shapes, or replicate the value along these "
            "axes",
            location_of(op),
        )

    def _sharded_dims(self, value: SSAValue) -> set[int]:
        """Return the dimensions of a value that the axes shard."""
        sharding = sharding_of(value)
        placed = sharding.entries if sharding is not None else ()
        return {placement.dim for axis, placement in placed if axis in self.axes and placement.dim is not None}

    def _batch_dims(self, value: SSAValue) -> Set[int]:
        """Return the dimensions of a value that depend on the size of the batch."""
        return self.sizes.dims.get(text_name(value), frozenset())

    def _is_used_inside(self, value: SSAValue) -> bool:
        """Return whether an op other than the return uses a value."""
        end = ir.terminator(self.function)
        return any(use.operation is not end for use in value.uses)

    def _is_whole(self, value: SSAValue) -> bool:
        """Return whether a value is replicated along the axes."""
        sharding = sharding_of(value)
        return sharding is not None and self.axes.isdisjoint(axis for axis, _ in sharding.entries)

    def _reduce_own_value(self, op: Collective, batch_axes: Sequence[str], other_axes: Sequence[str]) -> None:
        """Replace a reduction: scale the rank's value along `batch_axes`, and reduce it along the other axes only."""
        step = op.step(self.mesh)
        remaining = Sharding([entry for entry in step.source.entries if entry[0] not in batch_axes], step.source.mesh)
        value = self._scale(op.operands[0], batch_axes, remaining, op)
        if other_axes:
            reduction = step.source[other_axes[0]].op
            reduced = _REDUCE.build(
                value, axes=tuple(other_axes), reduction=reduction, sharding=step.target, mesh=self.mesh
            )
            Rewriter.insert_op(reduced, InsertPoint.before(op))
            value = reduced.results[0]
        self._replace(op, value)
        self.own.add(value)

    def _replace(self, op: Collective, value: SSAValue) -> None:
        """Replace a collective by `value`, which depends on the batch."""
        op.results[0].replace_all_uses_with(value)
        copy_name(value, op.results[0])
        Rewriter.erase_op(op)
        self.of_batch.add(value)

    def _scale(
        self,
        value: SSAValue,
        batch_axes: Sequence[str],
        sharding: Sharding,
        before: Operation,
        is_inverse: bool = False,
    ) -> SSAValue:
        """Return the reduction of a rank's value along `batch_axes`, as if all ranks had this value.

        Args:
            sharding: of the result.
            is_inverse: return the inverse instead: the partial value whose reduction is `value`.
        """
        factor = 1.0
        partial_sharding = sharding if is_inverse else sharding_of(value) or sharding
        for axis in batch_axes:
            reduction = partial_sharding[axis].op or ""
            if reduction not in _FACTORS:
                raise UnsupportedError(
                    f"a reduction by {reduction} on mesh axis '{axis}' cannot be computed by each rank for "
                    "its own batch; expected a sum or mean: give all ranks batches of one size",
                    location_of(before),
                )
            factor *= _FACTORS[reduction](self.mesh.sizes[axis])
        return self._multiply(value, 1 / factor if is_inverse else factor, sharding, before)

    def _multiply(self, value: SSAValue, factor: float, sharding: Sharding, before: Operation) -> SSAValue:
        """Return the product of a value and a number, computed right before `before`."""
        number = int(factor) if factor == int(factor) else factor
        product = op_class("aten.mul.Scalar").build(
            [value], [meta_of(value.type)], [sharding], before.location, other=number
        )
        Rewriter.insert_op(product, InsertPoint.before(before))
        return product.results[0]

    def _average(self, value: SSAValue, before: Operation) -> SSAValue:
        """Return the mean of a value over the ranks of the axes, computed right before `before`.

        Raises:
            UnsupportedError: the value has an integer type; located.
        """
        meta, sharding = meta_of(value.type), sharding_of(value)
        assert meta is not None and sharding is not None  # it is replicated along the axes
        if not meta.dtype.is_inexact:
            raise UnsupportedError(
                f"a result of type {meta.dtype} is computed from the separate batch of each rank, and integers have no "
                "mean; expected floats: use a floating-point buffer, or give the output an out-sharding",
                location_of(before if isinstance(value.owner, Block) else value.owner),
            )
        axes = [axis for axis in self.mesh.axis_names if axis in self.axes]
        partial = self._multiply(value, 1.0 / self.mesh.group_size(axes), _with_partial_sum(sharding, axes), before)
        mean = _REDUCE.build(partial, axes=tuple(axes), reduction="sum", mesh=self.mesh)
        Rewriter.insert_op(mean, InsertPoint.before(before))
        return mean.results[0]


def _with_partial_sum(sharding: Sharding, axes: Iterable[str]) -> Sharding:
    """Return `sharding` with a partial sum along `axes`, which it does not use."""
    return Sharding((*sharding.entries, *((axis, P("sum")) for axis in axes)), sharding.mesh)
