"""Group the rows of reports by layer: `layers.0.mlp`, `layers.1.mlp`, … become one row `layers.*.mlp`.

Only the numbers in names are used. `core/repetition.py` finds repeated layers of a program without names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TypeVar

Entry = TypeVar("Entry")

_NUMBER = re.compile(r"[0-9]+(?=\.)|(?<=\.)[0-9]+\Z")
"""The number of a layer in the name of a value: digits before a dot, or after the last one."""

_IN_PATH = re.compile(r"[0-9]{1,9}(?=\.|\Z)")
"""The number of a layer in a module path: digits before a dot or at the end."""


def of_any_layer(name: str, is_path: bool = False) -> str:
    """Replace the numbers of layers in a name or module path by `*`: `layers.3.mlp` becomes `layers.*.mlp`."""
    return (_IN_PATH if is_path else _NUMBER).sub("*", name)


def numbered_layer(path: str) -> tuple[str, int] | None:
    """Return the text before the first number of a path, and the number: ("layers.", 3) for `layers.3.mlp`."""
    match = _IN_PATH.search(path)
    return (path[: match.start()], int(match[0])) if match else None


def layer_of(path: str) -> str:
    """Return a module path up to its first number: `model.layers.3` for `model.layers.3.mlp.up`.

    A path without a number is returned unchanged.
    """
    match = _IN_PATH.search(path)
    return path[: match.end()] if match else path


def numbered_modules(path: str) -> list[str]:
    """Return the prefixes of a module path that end with a number: `a.1` and `a.1.b.2` for `a.1.b.2.mlp`."""
    return [path[: match.end()] for match in _IN_PATH.finditer(path)]


def equal_layers(
    entries: Iterable[Entry],
    labels: Callable[[Entry], tuple[str, ...]],
    content: Callable[[Entry], Hashable],
    path_columns: Container[int] = (),
) -> list[tuple[tuple[str, ...], list[Entry]]]:
    """Group the entries of equal layers, and return (common labels, entries) of each group.

    Entries are in one group if their labels differ only in the number of a layer, and their contents are equal. For
    example, the labels `layers.0.mlp`, `layers.1.mlp` and `layers.2.mlp` have the contents 5, 5 and 7. Then the groups
    are `layers.{0-1}.mlp` with two entries, and `layers.2.mlp` with one.

    Args:
        labels: entry → its labels.
        content: entry → its content without labels, which is equal within a group.
        path_columns: indices of the labels that are module paths.
    """
    families: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        family = tuple([of_any_layer(label, column in path_columns) for column, label in enumerate(labels(entry))])
        families.setdefault(family, []).append(entry)
    groups: list[tuple[tuple[str, ...], list[Entry]]] = []
    for family in families.values():
        entries_by_content: dict[Hashable, list[Entry]] = {}
        for entry in family:
            key = content(entry) if len(family) > 1 else None  # a single entry has none to compare with
            entries_by_content.setdefault(key, []).append(entry)
        groups += [
            (_combine_labels(list(map(labels, equal_entries)), len(family), path_columns), equal_entries)
            for equal_entries in entries_by_content.values()
        ]
    return groups


def rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    """Round numbers to six digits, because sums of equal layers differ in the last digits."""
    return tuple([float(f"{number:.6g}") for number in numbers])


def _combine_labels(rows: Sequence[tuple[str, ...]], family_size: int, path_columns: Container[int]) -> tuple[str, ...]:
    """Combine the labels of several rows column by column, with `layers_text` where the labels differ."""
    numbered_columns = enumerate(zip(*rows, strict=True))
    return tuple([
        cells[0] if len({*cells}) == 1 else layers_text(cells, family_size, column in path_columns)
        for column, cells in numbered_columns
    ])  # fmt: skip


def layers_text(names: Sequence[str], family_size: int, is_path: bool = False) -> str:
    """Return one text for several names that differ in the numbers of layers: `layers.*.mlp` or `layers.{0-3,5}.mlp`.

    Args:
        names: the names, in order. A single name is returned unchanged.
        family_size: how many such names there are. If `names` are fewer, the text lists their numbers. Names with
            several numbers are not listed: each number becomes `*`.
        is_path: whether the names are module paths.
    """
    if len(names) == 1:
        return names[0]
    starred_name = of_any_layer(names[0], is_path)
    if len(names) == family_size or starred_name.count("*") != 1:
        return starred_name
    before, after = starred_name.split("*")
    layer_numbers = sorted(int(name[len(before) : len(name) - len(after)]) for name in names)
    return f"{before}{{{_ranges_text(layer_numbers)}}}{after}"


def _ranges_text(numbers: Sequence[int]) -> str:
    """Format sorted numbers as `0-3,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
