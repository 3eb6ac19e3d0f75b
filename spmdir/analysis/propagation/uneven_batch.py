"""The values of a program that have rows of a batch whose size differs between ranks.

For example, an input of type `tensor<[s0]x16xf32>` is sharded along `dp`. The symbol s0 is the number of its rows. Of a
result of type `tensor<16x[s0]xf32>` that is computed from the input, dimension 1 has rows of the batch.
"""

from __future__ import annotations

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.symbolic.expressions import is_symbolic, symbols
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, sizes_of
from spmdir.dialects.values import is_call_input, sharding_of


@attrs.frozen(eq=False)
class Batch:
    """The batch of a function.

    Attributes:
        sizes: the symbols in the sizes of the first dimension of its inputs.
        values: its inputs, and all values computed from them.
    """

    sizes: frozenset[str] = frozenset()
    values: frozenset[SSAValue] = frozenset()

    @classmethod
    def of(cls, function: FuncOp, axes: tuple[str, ...]) -> Batch:
        """Return the batch of a function: the inputs of the call that have a placement along one of `axes`.

        The batch also has the values computed from these inputs, and the symbols in their first sizes. For example, an
        input of shape [2*s0, 8] that `dp` shards, with `dp` in `axes`, gives the symbol s0.

        Args:
            axes: the mesh axes whose ranks have batches of different sizes; the batch is empty without any.
        """
        if not axes:
            return cls()
        values: set[SSAValue] = set()
        sizes: set[str] = set()
        for argument in function.args:
            sharding = sharding_of(argument)
            if not is_call_input(function, argument.index) or sharding is None:
                continue
            if any(axis in axes for axis, _ in sharding.entries):
                values.add(argument)
                for size in sizes_of(argument.type)[:1]:  # a scalar has no first size
                    sizes.update(_symbols(size))
        for op in function.body.block.ops:
            if not values.isdisjoint(op.operands):
                values.update(op.results)
        return cls(frozenset(sizes), frozenset(values))

    def rows(self, op: AtenOp) -> tuple[frozenset[int], ...]:
        """Return for each result of an op the dimensions with rows of the batch.

        The result is () if the op does not depend on the batch, or if the batch has no symbolic size.
        """
        if not self.sizes or self.values.isdisjoint(op.results):
            return ()
        rows: list[frozenset[int]] = []
        for result in op.results:
            sizes = sizes_of(result.type) if meta_of(result.type) is not None else ()
            rows.append(frozenset(dim for dim, size in enumerate(sizes) if not self.sizes.isdisjoint(_symbols(size))))
        return tuple(rows)


def _symbols(size: object) -> tuple[str, ...]:
    """Return the symbols in a size; () if it is a number."""
    return symbols(size) if is_symbolic(size) else ()  # type: ignore  # an expression
