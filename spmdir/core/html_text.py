"""Texts as notebooks and Python prompts show them."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.axis_colors import axes_in, axis_color


class ShownAsText:
    """Gives a value a form in notebooks and at prompts: its text, with the columns of tables kept.

    A text of one line has its class before it, so that it reads inside other values, and where it is empty.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def __init_subclass__(cls) -> None:
        cls.__repr__ = cls.__repr__  # attrs makes one for a class that has none itself

    def __repr__(self) -> str:
        text = str(self).rstrip("\n")
        return text if "\n" in text else f"<{type(self).__name__}: {text}>"


def html_text(text: str, axes: Sequence[str] = ()) -> str:
    """Return a text as HTML; what is said of `axes` of a mesh has the colours of these."""
    from html import escape  # tools that show nothing in a notebook start without it

    parts = [(escape(part, quote=False), axis) for part, axis in axes_in(text, axes)]
    shown = (f"<b style='color:{axis_color(axis, axes)}'>{part}</b>" if axis else part for part, axis in parts)
    return f"<pre style='max-height:40em;overflow:auto'>{''.join(shown)}</pre>"
