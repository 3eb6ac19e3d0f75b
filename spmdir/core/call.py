"""One op call as plain values: what rules read, passes ask about, and the IR wraps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from spmdir.core.dtype import DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.intervals import Ranges, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, ShardPlacement, held_length, piece_lengths
from spmdir.core.placement.standard import Shard
from spmdir.core.tensor import TensorMeta


@attrs.frozen(cache_hash=True)
class SizeOperand:
    """An argument that is an operand: the size of that index among the sizes that an op takes. Prints as `%0`."""

    index: int

    def __str__(self) -> str:
        return f"%{self.index}"


@attrs.frozen(cache_hash=True)
class Local:
    """An integer that each rank computes for itself: the length, offset or end of its piece of a dimension.

    Prints as `size(10, dp, tp)`, `offset(10, dp, tp)` or `end(10, dp, tp)`: 10 elements cut by dp, each piece then by
    tp, as `torch.chunk` cuts; the end is the offset behind the last element. `plus` and `times` give
    `value * times + plus`, printed `offset(10, dp) * 2 + 1`.

    Attributes:
        cuts: how each axis cuts, if not all as `torch.chunk`; printed `size(10, dp: S(0), tp: Cyclic(0, 2))`.
    """

    kind: str
    extent: int
    axes: tuple[str, ...]
    times: int = 1
    plus: int = 0
    cuts: tuple[Placement, ...] = ()

    def evaluate(self, mesh: Mesh, coordinate: Mapping[str, int]) -> int:
        """The value on the rank at `coordinate`."""
        if self.kind == "size":
            own = self.extent
            for axis, cut in self._divided:
                assert isinstance(cut, ShardPlacement)
                own = held_length(cut, own, mesh.sizes[axis], coordinate[axis])
            return own * self.times + self.plus
        held: Ranges = ((0, self.extent),)
        for axis, cut in self._divided:
            assert isinstance(cut, ShardPlacement)
            held = select(held, cut.ranges(length(held), mesh.sizes[axis], coordinate[axis]))
        if len(held) != 1:
            raise UnsupportedError(f"{self} is no one number on a rank that holds {list(held)}; reshard to S first")
        return held[0][self.kind == "end"] * self.times + self.plus

    def is_even(self, mesh: Mesh) -> bool:
        """Whether all ranks have the same size."""
        return len(piece_lengths(tuple((cut, mesh.sizes[axis]) for axis, cut in self._divided), self.extent)) == 1

    @property
    def _divided(self) -> Iterator[tuple[str, Placement]]:
        """Each axis, and how it cuts."""
        return zip(self.axes, self.cuts or (Shard(0),) * len(self.axes), strict=True)

    @property
    def undivided(self) -> int:
        """The value where one rank holds all elements."""
        return (0 if self.kind == "offset" else self.extent) * self.times + self.plus

    def __str__(self) -> str:
        axes = (f"{axis}: {cut}" for axis, cut in zip(self.axes, self.cuts, strict=True)) if self.cuts else self.axes
        text = f"{self.kind}({', '.join([str(self.extent), *axes])})"
        text += f" * {self.times}" if self.times != 1 else ""
        return text + (f" + {self.plus}" if self.plus > 0 else f" - {-self.plus}" if self.plus < 0 else "")


Literal = int | float | complex | bool | str | None | DType | Local | SizeOperand | tuple["Literal", ...]
"""What a non-tensor argument can be; lists are tuples."""


Arguments = tuple[tuple[str, Literal], ...]
"""(Schema name, literal) pairs, sorted by name."""


def with_sizes(arguments: Arguments, sizes: Sequence[Any]) -> Arguments:
    """`arguments` with what `sizes` has in the place of each operand that is a size."""

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(filled, value))
        return sizes[value.index] if isinstance(value, SizeOperand) else value

    return tuple((name, filled(value)) for name, value in arguments)


Structure = tuple["int | tuple[int, ...]", ...]
"""How flat operands fill the tensor arguments of the schema, in order: 1 is a tensor, 0 a None, a tuple a list."""


@attrs.define(frozen=True, slots=False, cache_hash=True)
class Call:
    """A call of a torch op on tensors of known shapes; hashable, so that whatever is derived can be memoised.

    Attributes:
        name: namespace, op and overload, `default` left out: `aten.mm`, `aten.add.Tensor`.
        operands: the tensor operands, flat, in schema order.
        arguments: (schema name, literal) pairs of the non-tensor arguments that were given, sorted by name.
        results: one entry a result; None where the op returns None.
        structure: None when every tensor argument is one tensor, in schema order, without gaps.
    """

    name: str
    operands: tuple[TensorMeta, ...]
    arguments: tuple[tuple[str, Literal], ...] = attrs.field(eq=repr)  # 1, 1.0 and True are equal, but not here
    results: tuple[TensorMeta | None, ...]
    structure: Structure | None = None

    @cached_property
    def argument(self) -> dict[str, Literal]:
        """Schema name → literal."""
        return dict(self.arguments)

    @cached_property
    def slots(self) -> tuple[int | tuple[int | None, ...] | None, ...]:
        """Per tensor argument of the schema: the operand's index, None, or a tuple of these for a list."""
        if self.structure is None:
            return tuple(range(len(self.operands)))
        numbers = iter(range(len(self.operands)))
        return tuple(
            tuple(next(numbers) if one else None for one in entry)
            if isinstance(entry, tuple)
            else (next(numbers) if entry else None)
            for entry in self.structure
        )
