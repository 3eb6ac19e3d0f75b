"""A cut tensor as SVG: one element without scripts, fonts or addresses, readable on light and dark pages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from spmdir.core.axis_colors import AXIS_COLORS
from spmdir.core.intervals import Range
from spmdir.pictures.tiling import Tiling

WIDTH, HEIGHT = 480, 240
"""The room for the rectangles, in pixels."""

LEAST = 14
"""The smallest side of a piece: below it pieces of unequal lengths are drawn alike."""

LINE = 18
"""The height of a line of text."""

CHARACTER = 7.3
"""The width of a character of a label."""


def svg_text(tiling: Tiling) -> str:
    """Return an `<svg>` element; each rectangle has a tooltip with its positions and ranks."""
    rights = _edges(tiling.columns, WIDTH)
    bottoms = _edges(tiling.rows, HEIGHT if len(tiling.dims) == 2 else 48)
    left = 12 + CHARACTER * max((len(str(start)) for start, _ in tiling.rows), default=0)
    top = 2 * LINE + 12
    body = [_line(tiling.title, 4, LINE, "font-weight='600'")]
    if tiling.dims:
        body += _positions(tiling.columns, [(left + x, top - 4) for x in rights], "start")
    if len(tiling.dims) == 2:
        body += _positions(tiling.rows, [(left - 5, top + y + 12) for y in bottoms], "end")
    labels = tiling.labels
    for tile in tiling.tiles if 0 not in tiling.meta.shape else ():
        x, y = rights[tile.columns[0]], bottoms[tile.rows[0]]
        width, height = rights[tile.columns[1]] - x, bottoms[tile.rows[1]] - y
        color, turn = AXIS_COLORS[tile.holder % len(AXIS_COLORS)], tile.holder // len(AXIS_COLORS)
        label = labels[tile.holder]
        pieces = zip(("rows", "columns"), (tiling.rows, tiling.columns), (tile.rows, tile.columns), strict=True)
        where = ", ".join(f"{which} {cut[first][0]}:{cut[end - 1][1]}" for which, cut, (first, end) in pieces)
        dashes = " stroke-dasharray='4 3'" if tiling.mixed else ""
        body.append(
            f"<g><title>{escape(where)}: ranks {escape(label)}</title><rect x='{left + x:.1f}' y='{top + y:.1f}' "
            f"width='{width:.1f}' height='{height:.1f}' fill='{color}' fill-opacity='{0.25 + 0.2 * (turn % 3):.2f}' "
            f"stroke='{color}'{dashes}/>"
        )
        if len(label) * CHARACTER < width and height >= LEAST:
            middle = left + x + width / 2, top + y + height / 2 + 4
            body.append(_line(label, *middle, "text-anchor='middle'"))
        body.append("</g>")
    foot = top + bottoms[-1] + 4
    for at, note in enumerate(tiling.notes, 1):
        body.append(_line(note, 4, foot + at * LINE, "opacity='0.75'"))
    widest = max(len(line) for line in (tiling.title, *tiling.notes)) * CHARACTER + 8
    width, height = max(left + rights[-1] + 8, widest), foot + len(tiling.notes) * LINE + 8
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"style='max-width:100%;height:auto;font:12px ui-monospace,monospace;color-scheme:light dark' role='img' "
        f"aria-label='{escape(tiling.title, quote=True)}'>{''.join(body)}</svg>"
    )


def _edges(pieces: Sequence[Range], room: int) -> list[float]:
    """Return where the pieces begin and the last one ends: by their lengths where all are large enough to be seen."""
    total = sum(end - start for start, end in pieces) or 1
    sizes = [max(LEAST, (end - start) / total * room) for start, end in pieces]
    return list(itertools.accumulate(sizes, initial=0.0))


def _positions(pieces: Sequence[Range], places: Sequence[tuple[float, float]], anchor: str) -> list[str]:
    """Return the positions at which pieces begin, those that have room."""
    found, free = [], -1.0
    for (start, _), (x, y) in zip(pieces, places, strict=False):
        if anchor == "end" or x >= free:
            found.append(_line(str(start), x, y, f"text-anchor='{anchor}' opacity='0.65'"))
            free = x + (len(str(start)) + 1) * CHARACTER
    return found


def _line(text: str, x: float, y: float, given: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='currentColor' {given}>{escape(text)}</text>"
