"""Apply `slides` clauses: dimensions of convolution and pooling that are sharded in blocks, with halos."""

from __future__ import annotations

from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.window_geometry import Window, WindowShape, numbers, paddings, window


def slide(
    layout: LayoutBuilder, kernel: tuple[str, ...], over: tuple[str, ...], to: tuple[str, ...], condition: bool
) -> None:
    """Factor each dimension that a window slides over into the output dimension and the stride, and record the windows.

    For example, a convolution with stride 2 over 8 elements has 4 outputs `o`. Its input dimension becomes `(o
    stride)`, of 4 x 2 elements, so that 2 outputs on a rank correspond to 4 inputs.

    If blocks of input and output do not correspond, or `condition` is false, neither may be sharded.

    Args:
        kernel: the names of the window's dimensions, or of the literal argument that lists its sizes.
        over: the names of the input dimensions.
        to: the names of the output dimensions.
    """
    sources, targets = _referred(layout, over), _referred(layout, to)
    layout.keep_unsharded((*_referred(layout, kernel), *sources))
    shapes = _window_shapes(layout, kernel, len(sources))
    slid_windows: list[Window | None] = [None] * len(sources)
    rounds_up = bool(layout.argument("ceil_mode"))
    if condition and shapes and len(targets) == len(sources):
        slid_windows = [
            window(len(sources) - dim, layout.sizes[source] or 0, layout.sizes[target] or 0, shape, rounds_up)
            for dim, (source, target, shape) in enumerate(zip(sources, targets, shapes, strict=True))
        ]
    layout.paddings = tuple(shape.padding for shape in shapes or ())
    for source, target, slid_window in zip(sources, targets, slid_windows, strict=True):
        layout.windows[target] = slid_window
        if slid_window is None:
            continue
        input_factors = (target,)
        if slid_window.stride > 1:
            input_factors = (target, layout.factor("stride", slid_window.stride, unsharded=True))
        layout.halo_bytes[target] = _halo_bytes(layout, source, slid_window)
        layout.split(source, input_factors)


def size_outcomes(layout: LayoutBuilder) -> None:
    """Infer the sizes of the output dimensions of `slides` clauses from the input sizes and the window's arguments.

    For example, a convolution has the clause `slides *k over *s to *out`. With a kernel of 3, the stride 2 and the
    padding 1, 8 elements of `*s` give 4 elements of `*out`.

    Known sizes are kept. Nothing is inferred with `ceil_mode`, or if the arguments are invalid.
    """
    for clause in layout.rule.of_kind("slides"):
        kernel, over, to = clause.groups
        sources = _referred(layout, over)
        shapes = None if layout.argument("ceil_mode") else _window_shapes(layout, kernel, len(sources))
        sizes = [shape.steps(layout.sizes[source] or 0) for source, shape in zip(sources, shapes or (), strict=False)]
        if to[0][0] == "*":  # all output dimensions have one variadic name, such as `*o`
            variadic_name = to[0][1:]
            if shapes:
                factors = [layout.factor(f"{variadic_name}{dim}", size) for dim, size in enumerate(sizes)]
                layout.variadic.setdefault(variadic_name, factors)
            continue
        for name, size in zip(to, sizes, strict=False):
            if layout.sizes[layout.named_factor(name)] is None:
                layout.sizes[layout.named_factor(name)] = size


def _halo_bytes(layout: LayoutBuilder, source: int, slid_window: Window) -> int:
    """Return the bytes of the halos of one block along factor `source`, in all operands and results."""
    tensors = [
        *zip(layout.operands, layout.operand_dims, strict=True),
        *zip(layout.results or (), layout.result_dims, strict=False),
    ]
    metas = [meta for meta, dims in tensors if meta and dims and (source,) in dims]
    return sum(
        meta.bytes * (slid_window.before + slid_window.after) // max(layout.sizes[source] or 0, 1) for meta in metas
    )


def _window_shapes(layout: LayoutBuilder, kernel: tuple[str, ...], count: int) -> tuple[WindowShape, ...] | None:
    """Return the shape of the window along each of `count` dimensions; None if the arguments are invalid.

    Args:
        kernel: as for `slide`.
    """
    factors, ones = _referred(layout, kernel), (1,) * count
    # A convolution has the dimensions of its weight, and the stride 1 by default. A pooling has an argument with the
    # sizes, which are also its strides by default.
    sizes = tuple(layout.sizes[factor] or 0 for factor in factors) or numbers(layout.argument(kernel[0]), count, ())
    strides = numbers(layout.argument("stride"), count, ones if factors else sizes or ())
    dilations = numbers(layout.argument("dilation"), count, ones)
    if not sizes or not strides or not dilations or len(sizes) != count:
        return None
    pads = paddings(layout.argument("padding"), sizes, dilations)
    return None if pads is None else tuple(map(WindowShape, sizes, strides, pads, dilations))


def _referred(layout: LayoutBuilder, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the factors of `names`, without the names of arguments."""
    return tuple(factor for name in names if layout.rule.parameter(name) is None for factor in layout.refer(name))
