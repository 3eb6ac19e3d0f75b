"""Windows along one dimension: what torch's arguments say of them, and what a rank needs of its neighbours.

With stride s, every s input elements give one output element, so an input dimension is (output s), and a rank's block
of the output reads its own block of the input and halos: elements at the ends of its neighbours' blocks.
"""

from __future__ import annotations

from typing import Any

import attrs

from spmdir.core.placement.call import Literal


@attrs.frozen
class Window:
    """A window along one dimension that is sharded like the output.

    Attributes:
        from_end: the dimension that it slides over, counted from the last, which is 1.
        padding: the elements that the op adds in front.
        before, after: the elements of the neighbours, or of the padding, that a rank's block needs at its ends.
        stride: input elements to one output element.
    """

    from_end: int
    padding: int
    before: int
    after: int
    stride: int

    @property
    def least(self) -> int:
        """Return the output elements that a rank must have for its neighbours' halos to be in its own block."""
        return max(1, -(-max(self.before, self.after) // self.stride))


@attrs.frozen
class WindowShape:
    """What torch's arguments say of a window along one dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """Return the distance from its first element to its last."""
        return self.dilation * (self.kernel - 1)

    def steps(self, size: int) -> int:
        """Return the number of outputs over `size` elements."""
        return max(0, (size + 2 * self.padding - self.reach - 1) // max(self.stride, 1) + 1)


def window(from_end: int, size: int, output: int, shape: WindowShape, ceil: bool = False) -> Window | None:
    """Return the window over `size` elements that gives `output`.

    None if it gives another number, or if blocks of both do not correspond.

    Args:
        ceil: a last window that is not full counts, so there may be one more.
    """
    more = output - shape.steps(size)
    if output * shape.stride != size or not (more == 0 or (more == 1 and ceil)):
        return None
    # The last window of a block begins `stride` elements before the block's end, less the padding.
    after = max(0, shape.reach - shape.padding - shape.stride + 1)
    return Window(from_end, shape.padding, shape.padding, after, shape.stride)


def numbers(value: Literal, count: int, missing: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return one number for each of `count` dimensions from an argument that lists them, gives one for all, or is
    absent (`missing` then); None if it is none of these."""
    if value is None or value == ():
        return missing
    listed: Any = value if isinstance(value, tuple) else (value,)
    if not all(type(number) is int for number in listed) or len(listed) not in (1, count):
        return None
    return tuple(listed) * (count // len(listed))


def paddings(value: Literal, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the elements added in front of each dimension; None if another number is added behind.

    "same" keeps the size at stride 1.
    """
    if value == "valid":
        return (0,) * len(kernel)
    if value == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return None if any(r % 2 for r in reach) else tuple(r // 2 for r in reach)
    return numbers(value, len(kernel), (0,) * len(kernel))


HALO_OPS: dict[str, tuple[tuple[str, bool], ...]] = {
    "spmd.halo": (("input", True), ("fill", False)),
    "spmd.halo_reduce": (("input", True),),
}
"""Ops of a local form that exchange halos, along every sharded window → (name, whether it is a tensor) as in a rule.

halo(x, "zero"): x with the elements of its neighbours that its windows need; behind the last one there are zeros,
or, with "lowest", what is below every number. halo_reduce(y): the transpose; halos of y are added to
the neighbours' blocks.
"""
