"""The colours of mesh axes in pictures, reports and notebooks.

Each colour has a contrast of at least 3 against white and against #1e1e1e. Readers with any of the three kinds of
colour blindness can tell all of them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spmdir.core.axes import axis_part

AXIS_COLORS = ("#0077aa", "#dd6600", "#00aa66", "#9900ff", "#ad4668", "#aa77ff")
"""One colour per axis, in mesh order, for the largest number of axes."""


def axis_color(axis: str, axes: Sequence[str]) -> str:
    """Return the colour of an axis of a mesh with `axes`, as #rrggbb. A sub-axis has the colour of its axis."""
    part = axis_part(axis)
    return AXIS_COLORS[list(axes).index(part[0] if part else axis)]


def axes_in(text: str, axes: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Split the text of IR into parts, and yield each with the axis of `axes` that it belongs to, or None.

    A part that belongs to an axis is one of these: its name in the declaration of a mesh, a placement along the axis
    such as `tp: S(0)`, or its name in the group of a collective. Some of the other parts are empty.
    """
    if not axes:
        yield text, None
        return
    axis_pattern = rf"(?<![\w%.@])({'|'.join(axes)})(?:\([0-9]+\)[0-9]+)?"
    placement_pattern = rf"{axis_pattern}: (?:\?|[A-Za-z]\w*(?:\([^()]*\))?)"
    listed_pattern = rf"(?<=[\[ <]){axis_pattern}(?=, \w|\]| = )"
    end = 0
    for match in re.finditer(f"{placement_pattern}|{listed_pattern}", text):
        yield text[end : match.start()], None
        yield match[0], match[1] or match[2]
        end = match.end()
    yield text[end:], None
