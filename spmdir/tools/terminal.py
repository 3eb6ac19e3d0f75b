"""Coloured tables and IR for terminals: bold headers, dim zeros, and one colour for each mesh axis."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence

from spmdir.core.axis_colors import axes_in, axis_color
from spmdir.core.errors import printable

_ZERO = re.compile(r"0(?: B|%|\.0%)?")
_LABEL = 16
"""The width of a label in characters, if the terminal is narrow."""
_BETWEEN = 3
"""The number of characters between columns."""


def table_in_colour(cells: Sequence[tuple[str, ...]], numbers: range, axes: Sequence[str]) -> str:
    """Return the lines of a table with a header.

    The table is at most as wide as the terminal: labels are folded, down to `_LABEL` characters. Numbers are never
    folded, so the table may be wider on a narrow terminal.

    Args:
        numbers: the indices of the columns of numbers. The columns before are labels.
        axes: the mesh axes. Cells that list axes have the colours of these axes.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    cells = [tuple(map(printable, row)) for row in cells]
    needed = 0
    for index, column in enumerate(zip(*cells, strict=True)):
        widest = max(map(len, column))
        min_width = min(widest, _LABEL) if index < numbers.start else widest
        justify = "right" if index in numbers else "left"
        table.add_column(
            column[0], justify=justify, no_wrap=index >= numbers.start, min_width=min_width, overflow="fold"
        )
        needed += min_width + _BETWEEN
    for row in cells[1:]:
        texts = [Text(cell, "dim" if _ZERO.fullmatch(cell) else "") for cell in row]
        for cell in texts[: numbers.start]:
            if cell.plain and {*cell.plain.split(", ")} <= {*axes}:
                for axis in cell.plain.split(", "):
                    cell.highlight_words([axis], axis_color(axis, axes))
        table.add_row(*texts)
    width = max(shutil.get_terminal_size((160, 40)).columns, needed)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, no_color=False)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


_MESH = re.compile(r"^spmd\.mesh @\w+ <([^<>]*)>", re.MULTILINE)


def ir_in_colour(text: str) -> str:
    """Return IR with coloured mesh axes: in their sizes, in placements and in groups."""
    starts = [match.start() for match in _MESH.finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]
    return "".join(map(_part_in_colour, parts))


def _part_in_colour(text: str) -> str:
    """Return a part of the IR with coloured axes, if it begins with the declaration of a mesh; else the same text."""
    mesh = _MESH.match(text)
    return axes_in_colour(text, re.findall(r"(\w+) *=", mesh[1]) if mesh else [])


def axes_in_colour(text: str, axes: Sequence[str]) -> str:
    """Return a text with coloured `axes`: in their sizes, in placements and in groups."""
    shown = {name: _escape(axis_color(name, axes)) for name in axes}
    return "".join(f"{shown[axis]}{part}\x1b[0m" if axis else part for part, axis in axes_in(text, axes))


def _escape(color: str) -> str:
    """Return the escape sequence for the text colour #rrggbb."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"\x1b[38;2;{red};{green};{blue}m"
