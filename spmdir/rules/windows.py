"""Windows that slide over dimensions: convolution and pooling with pixels divided among ranks.

With stride s, every s input pixels give one output pixel, so an input dimension is (output s), and a rank's block of
the output reads its own block of the input and a border of its neighbours' blocks.
"""

from __future__ import annotations

from typing import Any

import attrs

from spmdir.call import Literal


@attrs.frozen
class Window:
    """A window along one dimension, divided in the way of the output.

    Attributes:
        from_end: the dimension that it slides over, counted from the last, which is 1.
        padding: the pixels that the op adds in front.
        before, after: how many pixels of the neighbours, or of the padding, a rank's block needs at its ends.
        stride: input pixels to one output pixel.
    """

    from_end: int
    padding: int
    before: int
    after: int
    stride: int

    @property
    def least(self) -> int:
        """The output pixels that a rank must have for its neighbours' borders to lie in its own block."""
        return max(1, -(-max(self.before, self.after) // self.stride))


@attrs.frozen
class Shape:
    """What torch's arguments say of a window along one dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """From its first pixel to its last."""
        return self.dilation * (self.kernel - 1)

    def steps(self, size: int) -> int:
        """The outputs over `size` pixels."""
        return max(0, (size + 2 * self.padding - self.reach - 1) // max(self.stride, 1) + 1)


def window(from_end: int, size: int, output: int, shape: Shape) -> Window | None:
    """The window over `size` pixels that gives `output`; None if blocks of both do not correspond."""
    if output * shape.stride != size:
        return None
    # The last window of a block begins `stride` pixels before the block's end, less the padding.
    after = max(0, shape.reach - shape.padding - shape.stride + 1)
    return Window(from_end, shape.padding, shape.padding, after, shape.stride)


def numbers(value: Literal, count: int, missing: tuple[int, ...]) -> tuple[int, ...] | None:
    """A number for each of `count` dimensions from an argument that lists them, gives one for all, or is absent."""
    if value is None or value == ():
        return missing
    listed: Any = value if isinstance(value, tuple) else (value,)
    if not all(type(number) is int for number in listed) or len(listed) not in (1, count):
        return None
    return tuple(listed) * (count // len(listed))


def paddings(value: Literal, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    """The pixels in front of each dimension; None if those behind are others. "same" keeps the size at stride 1."""
    if value == "valid":
        return (0,) * len(kernel)
    if value == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return None if any(r % 2 for r in reach) else tuple(r // 2 for r in reach)
    return numbers(value, len(kernel), (0,) * len(kernel))


BORDERS: dict[str, tuple[tuple[str, bool], ...]] = {
    "spmd.halo": (("input", True), ("fill", False)),
    "spmd.fold": (("input", True),),
}
"""Ops of a local form that exchange borders, along every divided window → (name, whether it is a tensor) as in a rule.

halo(x, "zero"): x with the pixels of its neighbours that its windows need; behind the last one there are zeros,
or, with "lowest", what is below every number. fold(y): the reverse, pixels at the ends are added to the neighbours'.
"""
