"""The text of mesh axes and of their parts.

An axis is a product of sub-axes. `tp(2)4` is the sub-axis of `tp` of size 4 that has sub-axes of 2 ranks together
outside it: of the ranks along `tp`, row-major, `tp(1)2` says the half, `tp(2)4` the place in fours inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

AXIS_TEXT = r"[A-Za-z_]\w*(?:\([1-9][0-9]*\)[1-9][0-9]*)?"
"""The regular expression of an axis or sub-axis."""

_AXIS = re.compile(r"([A-Za-z_]\w*)(?:\(([1-9][0-9]{0,17})\)([1-9][0-9]{0,17}))?", re.ASCII)


@lru_cache(maxsize=4096)
def axis_part(text: str) -> tuple[str, int, int] | None:
    """Return ("tp", 2, 4) for `tp(2)4`, ("tp", 1, 0) for `tp`, where 0 stands for its full size; None if malformed."""
    match = _AXIS.fullmatch(text)
    return (match[1], int(match[2] or 1), int(match[3] or 0)) if match else None


def is_axis(text: str) -> bool:
    """Return whether `text` can name a mesh axis or a sub-axis."""
    return axis_part(text) is not None


def is_part(axis: str) -> bool:
    """Return whether `axis` names a sub-axis."""
    return "(" in axis


def axis_order(axis: str) -> tuple[str, int]:
    """Return a sort key: by name, the outer sub-axes of one axis first."""
    name, outer, _ = axis_part(axis) or (axis, 1, 0)
    return name, outer


def overlapping(axes: Iterable[str]) -> tuple[str, str] | None:
    """Return two of `axes` that have ranks of one axis in common, or split it in incompatible ways."""
    ends: dict[str, tuple[str, int]] = {}
    for axis in sorted(axes, key=axis_order):
        name, outer, size = axis_part(axis) or (axis, 1, 0)
        if name in ends:
            before, end = ends[name]
            if not end or not size or outer % end:
                return before, axis
        ends[name] = axis, outer * size
    return None
