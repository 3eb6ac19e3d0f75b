"""The clause `slides`: dimensions of convolution and pooling that are sharded in blocks, with halos."""

from __future__ import annotations

from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.window_geometry import Window, WindowShape, numbers, paddings, window


def slide(
    layout: LayoutBuilder, kernel: tuple[str, ...], over: tuple[str, ...], to: tuple[str, ...], condition: bool
) -> None:
    """Make each dimension that a window slides over a product of the one that it gives and the stride.

    `kernel` names the window's dimensions or the literal argument that lists them. Where blocks of both do not
    correspond, or `condition` does not hold, neither may be sharded.
    """
    sources, targets = _referred(layout, over), _referred(layout, to)
    layout.keep_unsharded((*_referred(layout, kernel), *sources))
    shapes = _window_shapes(layout, kernel, len(sources))
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
        made_of = (target, layout.factor("stride", one.stride, unsharded=True)) if one.stride > 1 else (target,)
        layout.halo_bytes[target] = _halo_bytes(layout, source, one)
        layout.split(source, made_of)


def size_outcomes(layout: LayoutBuilder) -> None:
    """Work out the sizes of results that windows give, which no operand has."""
    for clause in layout.rule.of_kind("slides"):
        kernel, over, to = clause.groups
        sources = _referred(layout, over)
        shapes = None if layout.argument("ceil_mode") else _window_shapes(layout, kernel, len(sources))
        sizes = [shape.steps(layout.sizes[f] or 0) for f, shape in zip(sources, shapes or (), strict=False)]
        if shapes and to[0][0] == "*":
            layout.variadic.setdefault(to[0][1:], [layout.factor(f"{to[0][1:]}{i}", n) for i, n in enumerate(sizes)])
        for name, size in zip(to, sizes if to[0][0] != "*" else (), strict=False):
            if layout.sizes[layout.named_factor(name)] is None:
                layout.sizes[layout.named_factor(name)] = size


def _halo_bytes(layout: LayoutBuilder, source: int, along: Window) -> int:
    """Return the bytes that the halos of a block along factor `source` have in operands and results."""
    tensors = [
        *zip(layout.operands, layout.operand_dims, strict=True),
        *zip(layout.results or (), layout.result_dims, strict=False),
    ]
    metas = [meta for meta, dims in tensors if meta and dims and (source,) in dims]
    return sum(meta.bytes * (along.before + along.after) // max(layout.sizes[source] or 0, 1) for meta in metas)


def _window_shapes(layout: LayoutBuilder, kernel: tuple[str, ...], count: int) -> tuple[WindowShape, ...] | None:
    """Return the shape of the window along each of `count` dimensions; None if the arguments tell none."""
    factors, ones = _referred(layout, kernel), (1,) * count
    sizes = tuple(layout.sizes[f] or 0 for f in factors) or numbers(layout.argument(kernel[0]), count, ())
    strides = numbers(layout.argument("stride"), count, ones if factors else sizes or ())
    dilations = numbers(layout.argument("dilation"), count, ones)
    if not sizes or not strides or not dilations or len(sizes) != count:
        return None
    pads = paddings(layout.argument("padding"), sizes, dilations)
    return None if pads is None else tuple(map(WindowShape, sizes, strides, pads, dilations))


def _referred(layout: LayoutBuilder, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the factors that `names` mean, names of arguments left out."""
    return tuple(f for name in names if layout.rule.parameter(name) is None for f in layout.refer(name))
