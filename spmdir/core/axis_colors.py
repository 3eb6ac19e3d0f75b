"""The colour of each mesh axis, wherever an axis is shown in colour.

Each has a contrast of 3 or more against white and against #1e1e1e, and no two look alike to readers with any of the
three kinds of colour blindness.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spmdir.core.axes import axis_part

AXIS_COLORS = ("#0077aa", "#dd6600", "#00aa66", "#9900ff", "#ad4668", "#aa77ff")
"""A colour for each axis that a mesh may have, in mesh order."""


def axis_color(axis: str, axes: Sequence[str]) -> str:
    """Return the colour, as #rrggbb, of an axis of a mesh with `axes`; a sub-axis has that of its axis."""
    part = axis_part(axis)
    return AXIS_COLORS[list(axes).index(part[0] if part else axis)]


def axes_in(text: str, axes: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of IR in order, each with the axis of `axes` that it is about, or None.

    Of an axis are its size, a placement on it, and its name in the group of a collective.
    """
    if not axes:
        yield text, None
        return
    axis = rf"(?<![\w%.@])({'|'.join(axes)})(?:\([0-9]+\)[0-9]+)?"
    placed = rf"{axis}: (?:\?|[A-Za-z]\w*(?:\([^()]*\))?)"
    listed = rf"(?<=[\[ <]){axis}(?=, \w|\]| = )"
    end = 0
    for found in re.finditer(f"{placed}|{listed}", text):
        yield text[end : found.start()], None
        yield found[0], found[1] or found[2]
        end = found.end()
    yield text[end:], None
