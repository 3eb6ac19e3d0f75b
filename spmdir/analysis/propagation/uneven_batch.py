"""The values of a program that have rows of a batch whose size differs between ranks."""

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
        sizes: the symbolic sizes of its first dimension.
        values: its inputs, and all values computed from them.
    """

    sizes: frozenset[str] = frozenset()
    values: frozenset[SSAValue] = frozenset()

    @classmethod
    def of(cls, function: FuncOp, axes: tuple[str, ...]) -> Batch:
        """Return the batch of a function: the inputs that are sharded along `axes`."""
        if not axes:
            return cls()
        inputs_ = [value for value in function.args if is_call_input(function, value.index)]
        shardings = {value: sharding for value in inputs_ if (sharding := sharding_of(value)) is not None}
        inputs = [value for value, sharding in shardings.items() if any(axis in axes for axis, _ in sharding.entries)]
        sizes = frozenset(name for value in inputs for size in sizes_of(value.type)[:1] for name in _symbols(size))
        values: set[SSAValue] = set(inputs)
        for op in function.body.block.ops:
            if not values.isdisjoint(op.operands):
                values.update(op.results)
        return cls(sizes, frozenset(values))

    def rows(self, op: AtenOp) -> tuple[frozenset[int], ...]:
        """Return for each result of an op the dimensions with rows of the batch; () if they are unknown."""
        if not self.sizes or self.values.isdisjoint(op.results):
            return ()
        return tuple(
            frozenset(
                dim
                for dim, size in enumerate(sizes_of(result.type) if meta_of(result.type) is not None else ())
                if not self.sizes.isdisjoint(_symbols(size))
            )
            for result in op.results
        )


def _symbols(size: object) -> tuple[str, ...]:
    return symbols(size) if is_symbolic(size) else ()  # type: ignore  # an expression
