"""Draw a sharded tensor as SVG: one element without scripts, fonts or links, for light and dark pages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from spmdir.core.axis_colors import AXIS_COLORS
from spmdir.core.intervals import Range
from spmdir.pictures.tiling import Tile, Tiling

WIDTH, HEIGHT = 480, 240
"""The size of the area of rectangles, in pixels."""

MIN_SIDE = 14
"""The smallest side of a rectangle, in pixels. Smaller pieces are enlarged to it."""

LINE = 18
"""The height of a line of text, in pixels."""

CHARACTER = 7.3
"""The width of a character of a label, in pixels."""


def svg_text(tiling: Tiling) -> str:
    """Return an `<svg>` element with the title, the positions of rows and columns, the rectangles, and the notes.

    Each rectangle has a tooltip with its positions and ranks, and a label of its ranks if there is room. The outline is
    dashed if local tensors do not contain elements of the tensor, as with partial values.
    """
    column_offsets = _offsets(tiling.columns, WIDTH)
    # A single drawn dimension is a row of 48 pixels.
    row_offsets = _offsets(tiling.rows, HEIGHT if len(tiling.dims) == 2 else 48)
    left = 12 + CHARACTER * max((len(str(start)) for start, _ in tiling.rows), default=0)
    top = 2 * LINE + 12
    body = [_line(tiling.title, 4, LINE, "font-weight='600'")]
    if tiling.dims:
        body += _positions(tiling.columns, [(left + x, top - 4) for x in column_offsets], "start")
    if len(tiling.dims) == 2:
        body += _positions(tiling.rows, [(left - 5, top + y + 12) for y in row_offsets], "end")
    for tile in tiling.tiles if 0 not in tiling.meta.shape else ():
        x, y = column_offsets[tile.columns[0]], row_offsets[tile.rows[0]]
        size = column_offsets[tile.columns[1]] - x, row_offsets[tile.rows[1]] - y
        body.append(_rectangle(tiling, tile, (left + x, top + y), size))
    bottom = top + row_offsets[-1] + 4
    for number, note in enumerate(tiling.notes, 1):
        body.append(_line(note, 4, bottom + number * LINE, "opacity='0.75'"))
    widest = max(len(line) for line in (tiling.title, *tiling.notes)) * CHARACTER + 8
    width, height = max(left + column_offsets[-1] + 8, widest), bottom + len(tiling.notes) * LINE + 8
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"style='max-width:100%;height:auto;font:12px ui-monospace,monospace;color-scheme:light dark' role='img' "
        f"aria-label='{escape(tiling.title, quote=True)}'>{''.join(body)}</svg>"
    )


def _rectangle(tiling: Tiling, tile: Tile, corner: tuple[float, float], size: tuple[float, float]) -> str:
    """Return the element of a tile: its rectangle with a tooltip, and the label of its ranks if there is room.

    Args:
        corner: the x and y of the top left corner in pixels.
        size: width and height in pixels.
    """
    (x, y), (width, height) = corner, size
    # There are more holders than colours: each further round of the colours has another opacity.
    color, round_of_colors = AXIS_COLORS[tile.holder % len(AXIS_COLORS)], tile.holder // len(AXIS_COLORS)
    label = tiling.labels[tile.holder]
    pieces = zip(("rows", "columns"), (tiling.rows, tiling.columns), (tile.rows, tile.columns), strict=True)
    positions = ", ".join(f"{which} {cut[first][0]}:{cut[end - 1][1]}" for which, cut, (first, end) in pieces)
    dashes = " stroke-dasharray='4 3'" if tiling.mixed else ""
    rectangle = (
        f"<g><title>{escape(positions)}: ranks {escape(label)}</title><rect x='{x:.1f}' y='{y:.1f}' "
        f"width='{width:.1f}' height='{height:.1f}' fill='{color}' "
        f"fill-opacity='{0.25 + 0.2 * (round_of_colors % 3):.2f}' stroke='{color}'{dashes}/>"
    )
    has_room = len(label) * CHARACTER < width and height >= MIN_SIDE
    text = _line(label, x + width / 2, y + height / 2 + 4, "text-anchor='middle'") if has_room else ""
    return f"{rectangle}{text}</g>"


def _offsets(pieces: Sequence[Range], room: int) -> list[float]:
    """Return the offset of each piece and the end of the last one, in pixels.

    The sizes of pieces are in proportion to their lengths, and at least `MIN_SIDE`. So the end may exceed `room`.
    """
    total = sum(end - start for start, end in pieces) or 1
    sizes = [max(MIN_SIDE, (end - start) / total * room) for start, end in pieces]
    return list(itertools.accumulate(sizes, initial=0.0))


def _positions(pieces: Sequence[Range], places: Sequence[tuple[float, float]], anchor: str) -> list[str]:
    """Return text elements with the start positions of the pieces. In a row, labels that would overlap are left out."""
    elements, next_free = [], -1.0
    for (start, _), (x, y) in zip(pieces, places, strict=False):
        if anchor == "end" or x >= next_free:
            elements.append(_line(str(start), x, y, f"text-anchor='{anchor}' opacity='0.65'"))
            next_free = x + (len(str(start)) + 1) * CHARACTER
    return elements


def _line(text: str, x: float, y: float, attributes: str) -> str:
    """Return a text element at a position in pixels, with further attributes such as `opacity='0.75'`."""
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='currentColor' {attributes}>{escape(text)}</text>"
