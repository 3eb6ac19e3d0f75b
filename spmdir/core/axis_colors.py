"""The colour of each mesh axis, wherever an axis is shown in colour.

Each has a contrast of 3 or more against white and against #1e1e1e, and no two look alike to readers with any of the
three kinds of colour blindness.
"""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.axes import axis_part

AXIS_COLORS = ("#0077aa", "#dd6600", "#00aa66", "#9900ff", "#ad4668", "#aa77ff")
"""A colour for each axis that a mesh may have, in mesh order."""


def axis_color(axis: str, axes: Sequence[str]) -> str:
    """Return the colour, as #rrggbb, of an axis of a mesh with `axes`; a sub-axis has that of its axis."""
    part = axis_part(axis)
    return AXIS_COLORS[list(axes).index(part[0] if part else axis)]
