"""Texts as notebooks and IPython show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdir.core.axis_colors import axes_in, axis_color


class ShownAsText:
    """Gives a value a form in notebooks and IPython: its text, with the columns of tables kept."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def __init_subclass__(cls) -> None:
        # IPython takes the first of this and __repr__ that a class and those that it is made from have themselves.
        cls._repr_pretty_ = ShownAsText._repr_pretty_

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text where IPython shows the value alone, and its repr inside another one."""
        printer.text(str(self) if len(printer.stack) == 1 else repr(self))


def html_text(text: str, axes: Sequence[str] = ()) -> str:
    """Return a text as HTML; what is said of `axes` of a mesh has the colours of these."""
    from html import escape  # tools that show nothing in a notebook start without it

    parts = [(escape(part, quote=False), axis) for part, axis in axes_in(text, axes)]
    shown = (f"<b style='color:{axis_color(axis, axes)}'>{part}</b>" if axis else part for part, axis in parts)
    return f"<pre style='max-height:40em;overflow:auto'>{''.join(shown)}</pre>"
