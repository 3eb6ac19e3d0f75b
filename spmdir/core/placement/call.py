"""A call of an op as plain values, used by rules and passes, and wrapped by ops of the IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import attrs

from spmdir.core.causal_blocks import PRECEDENCE
from spmdir.core.dtype import DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.intervals import Ranges, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.shards import ShardPlacement, is_contiguous, shard_length, shard_lengths
from spmdir.core.placement.standard import Shard
from spmdir.core.placement.tensor import TensorMeta


@attrs.frozen(cache_hash=True)
class SizeOperand:
    """An argument that is a size operand, with its index among the size operands of the op. Prints as `%0`."""

    index: int

    def __str__(self) -> str:
        return f"%{self.index}"


@attrs.frozen(cache_hash=True)
class Local:
    """An integer that depends on the rank: the length, offset or end of its shard of a dimension.

    `size(10, dp, tp)`, `offset(10, dp, tp)` and `end(10, dp, tp)` describe a shard of 10 elements, sharded by dp and
    then by tp, as `torch.chunk` does. The end is exclusive. `shard(10, dp, tp)` is the shard itself, not a number.
    `offset(10, dp) * 2 + 1` has `times` 2 and `plus` 1. `size(10, dp, back 2)` describes the shard of the rank two
    positions earlier in the ring along the axes. `since(10, dp | 10, dp, back 2)` depends on two shards: see
    `spmdir.core.causal_blocks.PRECEDENCE`.

    Attributes:
        kind: "size", "offset", "end", "shard", or a key of PRECEDENCE.
        extent: the global size of the dimension.
        axes: the axes that shard it, in nesting order.
        placements: the placement of each axis, if not all are `S`; printed `size(10, dp: S(0), tp: Cyclic(0, 2))`.
        back: how many positions earlier in the ring the rank is that has the shard.
        other: the second shard, for keys of PRECEDENCE.
    """

    kind: str
    extent: int
    axes: tuple[str, ...]
    times: int = 1
    plus: int = 0
    placements: tuple[Placement, ...] = ()
    back: int = 0
    other: Local | None = None

    def evaluate(self, mesh: Mesh, coordinate: Mapping[str, int]) -> int:
        """Return the value on the rank at `coordinate`.

        Raises:
            UnsupportedError: the kind is "offset" or "end" and the shard is not one range, or the kind is "shard".
        """
        if self.other is not None:
            return self._scaled(
                PRECEDENCE[self.kind](self.ranges(mesh, coordinate), self.other.ranges(mesh, coordinate))
            )
        if self.kind == "size":
            coordinate = self._earlier_in_ring(mesh, coordinate)
            local_length = self.extent
            for axis, placement in self.placed:
                assert isinstance(placement, ShardPlacement)
                local_length = shard_length(placement, local_length, mesh.sizes[axis], coordinate[axis])
            return local_length * self.times + self.plus
        ranges = self.ranges(mesh, coordinate) or ((0, 0),)  # an empty shard is at position 0
        if len(ranges) != 1 or self.kind == "shard":
            raise UnsupportedError(
                f"{self} is not defined on a rank whose shard consists of the ranges {list(ranges)}; "
                "expected a shard of one range: reshard to S first"
            )
        start, end = ranges[0]
        return (end if self.kind == "end" else start) * self.times + self.plus

    def ranges(self, mesh: Mesh, coordinate: Mapping[str, int]) -> Ranges:
        """Return the ranges of positions of the rank at `coordinate`, in local order."""
        ranges: Ranges = ((0, self.extent),)
        coordinate = self._earlier_in_ring(mesh, coordinate)
        for axis, placement in self.placed:
            assert isinstance(placement, ShardPlacement)
            ranges = select(ranges, placement.ranges(length(ranges), mesh.sizes[axis], coordinate[axis]))
        return ranges

    def _scaled(self, value: int) -> int:
        """Return `value * times + plus`. Without a scale, `value` is returned itself, so a boolean stays a boolean."""
        return value if (self.times, self.plus) == (1, 0) else value * self.times + self.plus

    def _earlier_in_ring(self, mesh: Mesh, coordinate: Mapping[str, int]) -> Mapping[str, int]:
        """Return the coordinate of the rank `back` positions earlier in the ring, which is row-major over `axes`.

        On the axes dp = 2 and tp = 4, the rank 2 positions before (dp 1, tp 1) is (dp 0, tp 3).
        """
        if not self.back:
            return coordinate
        position = 0
        for axis in self.axes:
            position = position * mesh.sizes[axis] + coordinate[axis]
        position, ring_coordinate = position - self.back, dict[str, int]()
        for axis in reversed(self.axes):
            position, ring_coordinate[axis] = divmod(position, mesh.sizes[axis])
        return ring_coordinate

    def values(self, mesh: Mesh) -> frozenset[int]:
        """Return the set of values on all ranks."""
        return _values(self, mesh)

    @property
    def all_axes(self) -> tuple[str, ...]:
        """Return the axes that the value depends on."""
        return (*self.axes, *(self.other.axes if self.other else ()))

    def is_even(self, mesh: Mesh) -> bool:
        """Return whether the shards of all ranks have the same length."""
        return len(self.lengths(mesh)) == 1

    def lengths(self, mesh: Mesh) -> frozenset[int]:
        """Return the set of lengths of all shards."""
        return shard_lengths(tuple((placement, mesh.sizes[axis]) for axis, placement in self.placed), self.extent)

    def is_contiguous(self, mesh: Mesh) -> bool:
        """Return whether each shard is one range; False if several axes shard it and one has a plug-in placement."""
        if not self.placements:
            return True
        (axis, placement), *nested = self.placed
        assert isinstance(placement, ShardPlacement)
        return not nested and is_contiguous(placement, self.extent, mesh.sizes[axis])

    @property
    def placed(self) -> Iterator[tuple[str, Placement]]:
        """Iterate over (axis, placement). Without `placements`, each axis has the placement S."""
        return zip(self.axes, self.placements or (Shard(0),) * len(self.axes), strict=True)

    @property
    def unsharded(self) -> int:
        """Return the value on a single device, which has the whole dimension as its shard."""
        if self.other is not None:
            return self._scaled(PRECEDENCE[self.kind](((0, self.extent),), ((0, self.other.extent),)))
        return (0 if self.kind == "offset" else self.extent) * self.times + self.plus

    def _operands_text(self) -> str:
        """Return the text inside the parentheses: the extent, the axes, and the second shard after ` | `."""
        axes: Sequence[str] = self.axes
        if self.placements:
            axes = [f"{axis}: {placement}" for axis, placement in zip(self.axes, self.placements, strict=True)]
        text = ", ".join([str(self.extent), *axes, *([f"back {self.back}"] if self.back else [])])
        return text if self.other is None else f"{text} | {self.other._operands_text()}"

    def __str__(self) -> str:
        text = f"{self.kind}({self._operands_text()})"
        text += f" * {self.times}" if self.times != 1 else ""
        return text + (f" + {self.plus}" if self.plus > 0 else f" - {-self.plus}" if self.plus < 0 else "")


@lru_cache(maxsize=65536)
def _values(local: Local, mesh: Mesh) -> frozenset[int]:
    """Return the set of values of `local` on all ranks of `mesh`."""
    axes = tuple(dict.fromkeys(local.all_axes))
    coordinates = product(*(range(mesh.sizes[axis]) for axis in axes))
    return frozenset(local.evaluate(mesh, dict(zip(axes, indices, strict=True))) for indices in coordinates)


def shard_of(extent: int, entries: Sequence[tuple[str, Placement]]) -> Local:
    """Return the shard of `extent` elements over (axis, placement) pairs in nesting order.

    The `dim` of a placement has no effect, because a `Local` has only one dimension.
    """
    axes, placements = tuple(axis for axis, _ in entries), tuple(placement for _, placement in entries)
    is_standard = all(isinstance(placement, Shard) for placement in placements)
    return Local("shard", extent, axes, placements=() if is_standard else placements)


Literal = int | float | complex | bool | str | None | DType | Local | SizeOperand | tuple["Literal", ...]
"""Values of non-tensor arguments; lists are tuples."""


Arguments = tuple[tuple[str, Literal], ...]
"""(Schema name, literal) pairs, sorted by name."""


def with_sizes(arguments: Arguments, sizes: Sequence[Any]) -> Arguments:
    """Replace size operands in `arguments`, also inside lists, by the entries of `sizes`: `%0` by `sizes[0]`."""

    def substitute(literal: Any) -> Any:
        """Return a literal with its size operands replaced."""
        if isinstance(literal, tuple):
            return tuple(map(substitute, literal))
        return sizes[literal.index] if isinstance(literal, SizeOperand) else literal

    return tuple((name, substitute(value)) for name, value in arguments)


Structure = tuple["int | tuple[int, ...]", ...]
"""For each tensor argument of the schema: 1 is a tensor, 0 is None, and a tuple is a list of these."""


def _typed(arguments: tuple[tuple[str, Literal], ...]) -> str:
    """Return a key for comparison that differs if the types of arguments differ: 1 and 1.0 are equal in Python."""
    return repr(arguments) if arguments else ""


Slots = tuple[int | tuple[int | None, ...] | None, ...]
"""For each tensor argument of the schema: the index of its operand, None, or a tuple of these for a list."""


def slots_of(structure: Structure | None, count: int) -> Slots:
    """Return the index of the operand for each tensor argument of a call with `count` operands.

    Without a structure, operand i is argument i. The structure (1, 0, (1, 1)) of 3 operands gives (0, None, (1, 2)).
    """
    if structure is None:
        return tuple(range(count))
    operand_indices = iter(range(count))
    slots: list[int | tuple[int | None, ...] | None] = []
    for entry in structure:
        if isinstance(entry, tuple):
            slots.append(tuple([next(operand_indices) if is_tensor else None for is_tensor in entry]))
        else:
            slots.append(next(operand_indices) if entry else None)
    return tuple(slots)


@attrs.define(frozen=True, slots=False, cache_hash=True)
class Call:
    """A call of a torch op on tensors of known shapes. It is hashable, so results derived from it can be memoised.

    Attributes:
        name: namespace, op and overload, without `default`: `aten.mm`, `aten.add.Tensor`.
        operands: the tensor operands, flat, in schema order.
        arguments: (schema name, literal) pairs of the non-tensor arguments of the call, sorted by name.
        results: one entry per result; None if the op returns None.
        structure: None if every tensor argument is one tensor, in schema order, without gaps.
    """

    name: str
    operands: tuple[TensorMeta, ...]
    arguments: tuple[tuple[str, Literal], ...] = attrs.field(eq=_typed)  # 1, 1.0 and True are equal, but not here
    results: tuple[TensorMeta | None, ...]
    structure: Structure | None = None

    @cached_property
    def argument(self) -> dict[str, Literal]:
        """Return schema name → literal."""
        return dict(self.arguments)

    @cached_property
    def slots(self) -> Slots:
        """Return the index of the operand for each tensor argument of the schema, see `slots_of`."""
        return slots_of(self.structure, len(self.operands))
