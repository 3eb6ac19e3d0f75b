"""The geometry of windows along one dimension: their arguments in torch, and the halos that a rank needs.

With stride s, each s input elements correspond to one output element, so the input dimension is (output s). A rank's
block of the output reads its block of the input and halos: elements at the ends of its neighbours' blocks.

For example, a kernel of 3 with stride 1 and padding 1 has 8 inputs and 8 outputs. On 2 ranks, rank 0 computes outputs 0
to 3. They read inputs -1 to 4: padding before 0, its own inputs 0 to 3, and input 4 of rank 1. So `before` is 1 and
`after` is 1.
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
        padding: the number of elements that the op adds before the dimension.
        before, after: the number of elements that a rank needs before and after its block, from neighbours or padding.
        stride: the number of input elements for each output element.
    """

    from_end: int
    padding: int
    before: int
    after: int
    stride: int

    @property
    def least(self) -> int:
        """The smallest number of output elements for which a block contains the halos of both neighbours."""
        return max(1, -(-max(self.before, self.after) // self.stride))


@attrs.frozen
class WindowShape:
    """The arguments in torch of a window along one dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """The distance from the first to the last element of the window."""
        return self.dilation * (self.kernel - 1)

    def steps(self, size: int) -> int:
        """Return the number of outputs over `size` elements."""
        return max(0, (size + 2 * self.padding - self.reach - 1) // max(self.stride, 1) + 1)


def window(from_end: int, size: int, output: int, shape: WindowShape, ceil: bool = False) -> Window | None:
    """Return the window over a dimension of `size` elements with `output` results.

    Return None unless `output * stride == size`, which makes equal blocks of inputs and of outputs correspond, and
    `output` is the number of results that torch computes. For example, a kernel of 3 with stride 2 and padding 1 has 4
    results over 8 elements. A rank needs 1 element before its block and 0 after.

    Args:
        from_end: the dimension, counted from the last, which is 1.
        ceil: whether an incomplete last window counts, so there may be one more output.
    """
    extra_outputs = output - shape.steps(size)
    if output * shape.stride != size or not (extra_outputs == 0 or (extra_outputs == 1 and ceil)):
        return None
    # The first window of a block begins `padding` elements before the block, so `before` is the padding.
    # The last window of a block begins `stride + padding` elements before the end of the block.
    after = max(0, shape.reach - shape.padding - shape.stride + 1)
    return Window(from_end, shape.padding, shape.padding, after, shape.stride)


def numbers(value: Literal, count: int, missing: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return one number for each of `count` dimensions from an argument: a list, or one number for all dimensions.

    Return `missing` if the argument is absent, and None if it is invalid.
    """
    if value is None or value == ():
        return missing
    listed: Any = value if isinstance(value, tuple) else (value,)
    if not all(type(number) is int for number in listed) or len(listed) not in (1, count):
        return None
    return tuple(listed) * (count // len(listed))


def paddings(value: Literal, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the padding before each dimension; None if the padding after it differs, or the argument is invalid.

    The padding "same" keeps the size at stride 1. For that, a kernel of 3 with dilation 1 has the padding 1.

    Args:
        value: the argument `padding`: numbers, "valid", "same", or None for 0.
        kernel, dilation: the size and dilation of the window along each dimension.
    """
    if value == "valid":
        return (0,) * len(kernel)
    if value == "same":
        reaches = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        return None if any(reach % 2 for reach in reaches) else tuple(reach // 2 for reach in reaches)
    return numbers(value, len(kernel), (0,) * len(kernel))


HALO_OPS: dict[str, tuple[tuple[str, bool], ...]] = {
    "spmd.halo": (("input", True), ("fill", False)),
    "spmd.halo_reduce": (("input", True),),
}
"""Ops of local forms that exchange halos along all sharded windows → (name, whether it is a tensor) of parameters.

`halo(x, "zero")` extends x by the elements of its neighbours that its windows need. Beyond the ends of the dimension it
adds zeros, or with "lowest" the lowest value. `halo_reduce(y)` is the transpose: it adds the halos of y to the blocks
of the neighbours.
"""
