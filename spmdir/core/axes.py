"""The text of mesh axes and sub-axes.

A sub-axis is a factor of an axis, as in Shardy: `tp(p)n` has size n, and p is the product of the sizes of the sub-axes
outside it. For example, an axis `tp` of 8 ranks is `tp(1)2` × `tp(2)4`. The coordinate of rank r along `tp(1)2` is
r // 4, and along `tp(2)4` it is r % 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

AXIS_TEXT = r"[A-Za-z_]\w*(?:\([1-9][0-9]*\)[1-9][0-9]*)?"
"""Regular expression for an axis or sub-axis."""

_AXIS = re.compile(r"([A-Za-z_]\w*)(?:\(([1-9][0-9]{0,17})\)([1-9][0-9]{0,17}))?", re.ASCII)


@lru_cache(maxsize=4096)
def axis_part(text: str) -> tuple[str, int, int] | None:
    """Return ("tp", 2, 4) for `tp(2)4`, and ("tp", 1, 0) for `tp`, where 0 is the full size; None if malformed."""
    match = _AXIS.fullmatch(text)
    return (match[1], int(match[2] or 1), int(match[3] or 0)) if match else None


def is_axis(text: str) -> bool:
    """Return whether `text` is a valid name of a mesh axis or a sub-axis."""
    return axis_part(text) is not None


def is_part(axis: str) -> bool:
    """Return whether `axis` names a sub-axis."""
    return "(" in axis


def axis_order(axis: str) -> tuple[str, int]:
    """Return a sort key: by name, then outer sub-axes before inner ones."""
    name, outer, _ = axis_part(axis) or (axis, 1, 0)
    return name, outer


def overlapping(axes: Iterable[str]) -> tuple[str, str] | None:
    """Return two of `axes` that overlap, or that split one axis in incompatible ways; None if there are none.

    `tp(1)2` and `tp(2)4` do not overlap. `tp(1)4` and `tp(2)4` do: both contain the factor `tp(2)2`.
    """
    # Name of an axis → (its sub-axis so far, number of blocks up to its inner end; 0 for the full axis).
    previous_part: dict[str, tuple[str, int]] = {}
    for axis in sorted(axes, key=axis_order):
        name, outer, size = axis_part(axis) or (axis, 1, 0)
        if name in previous_part:
            previous, previous_end = previous_part[name]
            has_full_axis = not previous_end or not size
            # `outer` is a multiple of `previous_end` if this sub-axis is inside the blocks of the previous one.
            if has_full_axis or outer % previous_end:
                return previous, axis
        previous_part[name] = axis, outer * size
    return None
