"""Tables in colour, for terminals: heads, quiet zeros, and axes of the mesh each in its colour."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence

from spmdir.core.axis_colors import axes_in, axis_color
from spmdir.core.errors import printable

_ZERO = re.compile(r"0(?: B|%|\.0%)?")
_LABEL = 16
"""How many characters a label has in a line, however narrow the terminal is."""
_BETWEEN = 3
"""How many characters stand between columns."""


def table_in_colour(cells: Sequence[tuple[str, ...]], numbers: range, axes: Sequence[str]) -> str:
    """Return the lines of a table with a head.

    It is as wide as the terminal at most, unless that has no room for what follows the labels and for the labels
    folded to `_LABEL` characters: no number is cut.

    Args:
        numbers: which columns are numbers; those before are labels.
        axes: of the mesh; a cell that names some has their colours.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    cells = [tuple(map(printable, row)) for row in cells]
    needed = 0
    for at, column in enumerate(zip(*cells, strict=True)):
        widest = max(map(len, column))
        least = min(widest, _LABEL) if at < numbers.start else widest
        justify = "right" if at in numbers else "left"
        found.add_column(column[0], justify=justify, no_wrap=at >= numbers.start, min_width=least, overflow="fold")
        needed += least + _BETWEEN
    for row in cells[1:]:
        texts = [Text(cell, "dim" if _ZERO.fullmatch(cell) else "") for cell in row]
        for cell in texts[: numbers.start]:
            if cell.plain and {*cell.plain.split(", ")} <= {*axes}:
                for axis in cell.plain.split(", "):
                    cell.highlight_words([axis], axis_color(axis, axes))
        found.add_row(*texts)
    width = max(shutil.get_terminal_size((160, 40)).columns, needed)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, no_color=False)
    console.print(found)
    lines = console.file.getvalue().splitlines()  # type: ignore  # it is a StringIO
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


_MESH = re.compile(r"^spmd\.mesh @\w+ <([^<>]*)>", re.MULTILINE)


def ir_in_colour(text: str) -> str:
    """Return IR with each axis in its colour, where its size, a placement on it, or a group along it stands."""
    starts = [match.start() for match in _MESH.finditer(text)]
    parts = [text[first:last] for first, last in zip([0, *starts], [*starts, len(text)], strict=True)]
    return "".join(map(_part_in_colour, parts))


def _part_in_colour(text: str) -> str:
    """Return the text of one mesh with its axes in colour."""
    mesh = _MESH.match(text)
    return axes_in_colour(text, re.findall(r"(\w+) *=", mesh[1]) if mesh else [])


def axes_in_colour(text: str, axes: Sequence[str]) -> str:
    """Return a text with each axis in its colour, where its size, a placement on it, or a group along it stands."""
    shown = {name: _escape(axis_color(name, axes)) for name in axes}
    return "".join(f"{shown[axis]}{part}\x1b[0m" if axis else part for part, axis in axes_in(text, axes))


def _escape(color: str) -> str:
    """Return the sequence by which a terminal goes on in a colour #rrggbb."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"\x1b[38;2;{red};{green};{blue}m"
