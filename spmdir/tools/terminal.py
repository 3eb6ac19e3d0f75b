"""Tables in colour, for terminals: heads, quiet zeros, and axes of the mesh each in its colour."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence

from spmdir.core.axis_colors import axis_color

_ZERO = re.compile(r"0(?: B|%|\.0%)?")


def table_in_colour(cells: Sequence[tuple[str, ...]], numbers: range, axes: Sequence[str]) -> str:
    """Return the lines of a table with a head, as wide as the terminal at most.

    Args:
        numbers: which columns are numbers.
        axes: of the mesh; a cell that names some has their colours.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at, head in enumerate(cells[0]):
        found.add_column(head, justify="right" if at in numbers else "left", no_wrap=at in numbers, overflow="fold")
    for row in cells[1:]:
        texts = [Text(cell, "dim" if _ZERO.fullmatch(cell) else "") for cell in row]
        for cell in texts[: numbers.start]:
            if cell.plain and {*cell.plain.split(", ")} <= {*axes}:
                for axis in cell.plain.split(", "):
                    cell.highlight_words([axis], axis_color(axis, axes))
        found.add_row(*texts)
    width = shutil.get_terminal_size((160, 40)).columns
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, no_color=False)
    console.print(found)
    return console.file.getvalue().strip("\n") + "\n"  # type: ignore  # it is a StringIO
