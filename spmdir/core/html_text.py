"""Texts as HTML, for notebooks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spmdir.core.axis_colors import axis_color


class ShownAsText:
    """Gives a value a form in notebooks: its text, with the columns of tables kept."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_text(str(self))


def html_text(text: str, axes: Sequence[str] = ()) -> str:
    """Return a text as HTML; placements along `axes` of a mesh have the colours of these."""
    from html import escape  # tools that show nothing in a notebook start without it

    found = escape(text, quote=False)
    if axes:
        names = "|".join(map(re.escape, axes))
        found = re.sub(
            rf"\b({names})((?:\([0-9]+\)[0-9]+)?: [A-Z?]\w*(?:\([^()<>]*\))?)",
            lambda match: f"<b style='color:{axis_color(match[1], axes)}'>{match[0]}</b>",
            found,
        )
    return f"<pre style='max-height:40em;overflow:auto'>{found}</pre>"
