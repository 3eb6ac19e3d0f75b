"""Draw a sharded tensor with box-drawing characters: rectangles with the ranks that hold them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from spmdir.core.axis_colors import AXIS_COLORS
from spmdir.core.intervals import Range
from spmdir.pictures.tiling import Tiling

WIDTH = 72
"""The width of a picture in characters, unless its labels need more."""

HEIGHT = 12
"""The height of a picture in lines, unless it has more rows, or only one."""

_LINES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
"""Box-drawing characters, indexed by the sum of the directions of the lines that meet."""
_ABOVE, _BELOW, _LEFT, _RIGHT = 1, 2, 4, 8
_VERTICAL, _HORIZONTAL = _ABOVE + _BELOW, _LEFT + _RIGHT


def terminal_text(tiling: Tiling, color: bool) -> str:
    """Return the picture as lines: the title, the positions of columns, the rectangles, and the notes.

    Each rectangle is the part of the tensor that some ranks hold, and contains the label of these ranks. A tensor
    without elements has no rectangles.

    Args:
        color: whether terminal escapes fill the rectangles with the colours of their ranks.
    """
    if 0 in tiling.meta.shape:
        return "\n".join([tiling.title, "no elements", *tiling.notes])
    is_matrix = len(tiling.dims) == 2
    widths = _widths(tiling, tiling.labels)
    heights = _spread(tiling.rows, [1] * len(tiling.rows), min(HEIGHT, 4 * len(tiling.rows)) if is_matrix else 0)
    # The positions of the lines between rectangles, as characters and lines from the top left.
    column_lines = list(itertools.accumulate([width + 1 for width in widths], initial=0))
    row_lines = list(itertools.accumulate([height + 1 for height in heights], initial=0))
    lines = [_heading(tiling.columns, column_lines)] if tiling.dims else []
    first_row = len(lines)
    lines += _rectangle_lines(tiling, row_lines, column_lines, color)
    row_starts: dict[int, str] = {}  # line of the picture → the first row of the tensor in it
    if is_matrix:
        row_starts = {row_lines[index] + 1: str(start) for index, (start, _) in enumerate(tiling.rows)}
    margin = max(map(len, row_starts.values()), default=0) + bool(row_starts)
    lines = [f"{row_starts.get(number - first_row, ''):<{margin}}{line}" for number, line in enumerate(lines)]
    return "\n".join([tiling.title, *(line.rstrip() for line in lines), *tiling.notes])


def _rectangle_lines(
    tiling: Tiling, row_lines: Sequence[int], column_lines: Sequence[int], color: bool
) -> Iterator[str]:
    """Yield the lines of text of the rectangles, with the lines between them and the labels.

    Args:
        row_lines, column_lines: the positions of the lines between rectangles, as lines and characters.
    """
    tile_at: dict[tuple[int, int], int] = {}  # (row, column) → the number of the tile, for characters inside tiles
    label_at: dict[tuple[int, int], str] = {}  # (row, column) → a character of a label
    for number, tile in enumerate(tiling.tiles):
        top, bottom = (row_lines[edge] for edge in tile.rows)
        left, right = (column_lines[edge] for edge in tile.columns)
        for row, column in itertools.product(range(top + 1, bottom), range(left + 1, right)):
            tile_at[row, column] = number
        label, middle = tiling.labels[tile.holder], (top + bottom) // 2
        indent = max(0, (right - left - 1 - len(label)) // 2)
        for column, character in enumerate(label, left + 1 + indent):
            label_at[middle, column] = character
    for row in range(row_lines[-1] + 1):
        cells = [_cell(tile_at, label_at, row, column) for column in range(column_lines[-1] + 1)]
        holders = [tiling.tiles[tile].holder if color and tile is not None else None for _, tile in cells]
        line = ""
        for holder, run in itertools.groupby(zip(cells, holders, strict=True), key=itemgetter(1)):
            line += _filled("".join(character for (character, _), _ in run), holder)
        yield line


def _widths(tiling: Tiling, labels: Sequence[str]) -> list[int]:
    """Return the inner width of each column."""
    needed = [1] * len(tiling.columns)
    for tile in tiling.tiles:
        # The label and a space at each side must fit into the columns of the tile and the lines between them.
        start, end = tile.columns
        needed_together = len(labels[tile.holder]) + 2 - (end - start - 1)
        needed_each = math.ceil(needed_together / (end - start))
        for index in range(start, end):
            needed[index] = max(needed[index], needed_each)
    if tiling.dims:
        for index, (start, _) in enumerate(tiling.columns):
            needed[index] = max(needed[index], len(str(start)))
    return _spread(tiling.columns, needed, min(WIDTH, 10 * len(needed) + 6))


def _spread(pieces: Sequence[Range], needed: Sequence[int], room: int) -> list[int]:
    """Return a size for each piece: its part of `room` in proportion to its length, but at least the `needed` size."""
    total = sum(end - start for start, end in pieces) or 1
    sizes = []
    for (start, end), minimum in zip(pieces, needed, strict=True):
        sizes.append(max(minimum, (end - start) * room // total - 1))
    return sizes


def _heading(columns: Sequence[Range], rights: Sequence[int]) -> str:
    """Return the line with the start positions of the columns, each one character right of its line in `rights`."""
    line = ""
    for index, (start, _) in enumerate(columns):
        line += " " * (rights[index] + 1 - len(line)) + str(start)
    return line


def _cell(
    owner: dict[tuple[int, int], int], text: dict[tuple[int, int], str], row: int, column: int
) -> tuple[str, int | None]:
    """Return the character of a cell of the picture, and the tile that it belongs to; None on a line.

    A cell between two cells of the same tile is blank: the line there would separate nothing.

    Args:
        owner: (row, column) → the tile, for cells inside tiles.
        text: (row, column) → the character, for cells of labels.
    """
    if (row, column) in owner:
        return text.get((row, column), " "), owner[row, column]
    above, below = owner.get((row - 1, column)), owner.get((row + 1, column))
    left, right = owner.get((row, column - 1)), owner.get((row, column + 1))
    if above is not None or below is not None:
        lines = 0 if above == below else _HORIZONTAL
        tile = above
    elif left is not None or right is not None:
        lines = 0 if left == right else _VERTICAL
        tile = left
    else:
        # A line leaves this corner in each direction in which it separates two tiles.
        above_left, above_right = owner.get((row - 1, column - 1)), owner.get((row - 1, column + 1))
        below_left, below_right = owner.get((row + 1, column - 1)), owner.get((row + 1, column + 1))
        lines = _ABOVE * (above_left != above_right) + _BELOW * (below_left != below_right)
        lines += _LEFT * (above_left != below_left) + _RIGHT * (above_right != below_right)
        tile = above_left
    return _LINES[lines], None if lines else tile


def _filled(text: str, holder: int | None) -> str:
    """Return text on the color of the rank that holds an element; unchanged if none does."""
    if holder is None:
        return text
    color = AXIS_COLORS[holder % len(AXIS_COLORS)]
    red, green, blue = (int(color[index : index + 2], 16) for index in (1, 3, 5))
    return f"\x1b[48;2;{red};{green};{blue};97m{text}\x1b[0m"
