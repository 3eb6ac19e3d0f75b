"""Representations of values in notebooks and at Python prompts."""

from __future__ import annotations

from collections.abc import Sequence

from spmdir.core.axis_colors import axes_in, axis_color


class ShownAsText:
    """Mixin that shows the `str` of a value in notebooks and at prompts.

    A text of one line is shown as `<Class: text>`. A text of several lines is shown alone, to keep columns aligned.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def __init_subclass__(cls) -> None:
        cls.__repr__ = cls.__repr__  # else attrs would generate one for the class

    def __repr__(self) -> str:
        text = str(self).rstrip("\n")
        return text if "\n" in text else f"<{type(self).__name__}: {text}>"


def html_text(text: str, axes: Sequence[str] = ()) -> str:
    """Return text as HTML, with placements and sizes of mesh `axes` in the colours of the axes."""
    from html import escape  # not imported when tools start, since only notebooks need it

    parts = [(escape(part, quote=False), axis) for part, axis in axes_in(text, axes)]
    shown = (f"<b style='color:{axis_color(axis, axes)}'>{part}</b>" if axis else part for part, axis in parts)
    return f"<pre style='max-height:40em;overflow:auto'>{''.join(shown)}</pre>"
