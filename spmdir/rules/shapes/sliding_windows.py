"""Windows that slide over dimensions: convolution and pooling with pixels divided among ranks.

With stride s, every s input pixels give one output pixel, so an input dimension is (output s), and a rank's block of
the output reads its own block of the input and a border of its neighbours' blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from spmdir.core.call import Literal

if TYPE_CHECKING:
    from spmdir.rules.shapes.layout import Dims, Layout


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


def window(from_end: int, size: int, output: int, shape: Shape, ceil: bool = False) -> Window | None:
    """Return the window over `size` pixels that gives `output`; None if it gives another number, or if blocks of both
    do not correspond.

    Args:
        ceil: a last window that is not full counts, so there may be one more.
    """
    more = output - shape.steps(size)
    if output * shape.stride != size or not (more == 0 or (more == 1 and ceil)):
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


def slide(layout: Layout, kernel: tuple[str, ...], over: tuple[str, ...], to: tuple[str, ...], condition: bool) -> None:
    """Make each dimension that a window slides over a product of the one that it gives and the stride.

    `kernel` names the window's dimensions or the literal argument that lists them. Where blocks of both do not
    correspond, or `condition` does not hold, neither may be divided.
    """
    sources, targets = _referred(layout, over), _referred(layout, to)
    layout.whole.update((*_referred(layout, kernel), *sources))
    shapes = _sliding(layout, kernel, len(sources))
    found: list[Window | None] = [None] * len(sources)
    ceil = bool(layout.argument("ceil_mode"))
    if condition and shapes and len(targets) == len(sources):
        found = [
            window(len(sources) - d, layout.sizes[source] or 0, layout.sizes[target] or 0, shape, ceil)
            for d, (source, target, shape) in enumerate(zip(sources, targets, shapes, strict=True))
        ]
    layout.paddings = tuple(shape.padding for shape in shapes or ())
    for source, target, one in zip(sources, targets, found, strict=True):
        layout.windows[target] = one
        if one is None:
            continue
        made_of = (target, layout.factor("stride", one.stride, whole=True)) if one.stride > 1 else (target,)
        layout.borders[target] = _border_bytes(layout, source, one)
        layout.operand_dims = [_put(dims, source, made_of) for dims in layout.operand_dims]
        layout.result_dims = [None if dims is None else _put(dims, source, made_of) for dims in layout.result_dims]


def _border_bytes(layout: Layout, source: int, along: Window) -> int:
    """Bytes that the borders of a block along factor `source` have in operands and results."""
    held = [
        *zip(layout.operands, layout.operand_dims, strict=True),
        *zip(layout.given or (), layout.result_dims, strict=False),
    ]
    metas = [meta for meta, dims in held if meta and dims and (source,) in dims]
    return sum(meta.bytes * (along.before + along.after) // max(layout.sizes[source] or 0, 1) for meta in metas)


def _sliding(layout: Layout, kernel: tuple[str, ...], count: int) -> tuple[Shape, ...] | None:
    """The shape of the window along each of `count` dimensions; None if the arguments tell none."""
    factors, ones = _referred(layout, kernel), (1,) * count
    sizes = tuple(layout.sizes[f] or 0 for f in factors) or numbers(layout.argument(kernel[0]), count, ())
    strides = numbers(layout.argument("stride"), count, ones if factors else sizes or ())
    dilations = numbers(layout.argument("dilation"), count, ones)
    if not sizes or not strides or not dilations or len(sizes) != count:
        return None
    pads = paddings(layout.argument("padding"), sizes, dilations)
    return None if pads is None else tuple(map(Shape, sizes, strides, pads, dilations))


def size_outcomes(layout: Layout) -> None:
    """Sizes of results that windows give, which no operand has."""
    for clause in layout.rule.of_kind("slides"):
        kernel, over, to = clause.groups
        sources = _referred(layout, over)
        shapes = None if layout.argument("ceil_mode") else _sliding(layout, kernel, len(sources))
        sizes = [shape.steps(layout.sizes[f] or 0) for f, shape in zip(sources, shapes or (), strict=False)]
        if shapes and to[0][0] == "*":
            layout.spreads.setdefault(to[0][1:], [layout.factor(f"{to[0][1:]}{i}", n) for i, n in enumerate(sizes)])
        for name, size in zip(to, sizes if to[0][0] != "*" else (), strict=False):
            if layout.sizes[layout.named_factor(name)] is None:
                layout.sizes[layout.named_factor(name)] = size


def _referred(layout: Layout, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(f for name in names if layout.rule.parameter(name) is None for f in layout.refer(name))


def _put(dims: Dims, factor: int, made_of: tuple[int, ...]) -> Dims:
    """`dims` with `made_of` wherever `factor` is a whole dimension."""
    return tuple(made_of if d == (factor,) else d for d in dims)


BORDERS: dict[str, tuple[tuple[str, bool], ...]] = {
    "spmd.halo": (("input", True), ("fill", False)),
    "spmd.fold": (("input", True),),
}
"""Ops of a local form that exchange borders, along every divided window → (name, whether it is a tensor) as in a rule.

halo(x, "zero"): x with the pixels of its neighbours that its windows need; behind the last one there are zeros,
or, with "lowest", what is below every number. fold(y): the reverse, pixels at the ends are added to the neighbours'.
"""
