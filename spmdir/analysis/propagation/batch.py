"""What of a program is about a batch of which ranks along some axes have parts of their own sizes."""

from __future__ import annotations

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.symbolic.expressions import is_symbolic, symbols
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, sizes_of
from spmdir.dialects.values import is_given, sharding_of


@attrs.frozen(eq=False)
class Batch:
    """The batch of a function.

    Attributes:
        sizes: the symbolic sizes of its first dimension.
        values: its inputs, and what is computed from them.
    """

    sizes: frozenset[str] = frozenset()
    values: frozenset[SSAValue] = frozenset()

    @classmethod
    def of(cls, function: FuncOp, axes: tuple[str, ...]) -> Batch:
        """Return the batch whose inputs are sharded along `axes`."""
        if not axes:
            return cls()
        given = [value for value in function.args if is_given(function, value.index)]
        shardings = {value: sharding for value in given if (sharding := sharding_of(value)) is not None}
        inputs = [value for value, sharding in shardings.items() if any(axis in axes for axis, _ in sharding.entries)]
        sizes = frozenset(name for value in inputs for size in sizes_of(value.type)[:1] for name in _symbols(size))
        found: set[SSAValue] = set(inputs)
        for op in function.body.block.ops:
            if not found.isdisjoint(op.operands):
                found.update(op.results)
        return cls(sizes, frozenset(found))

    def rows(self, op: AtenOp) -> tuple[frozenset[int], ...]:
        """Return of each result of an op the dimensions that have rows of the batch; () if that is not known."""
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
