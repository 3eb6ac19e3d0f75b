"""Names of equal layers: the number of a layer in a name or module path, as in `layers.3.mlp`.

This groups the rows of reports by name; no program is compared. `core/repetition.py` finds equal layers without names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TypeVar

Entry = TypeVar("Entry")

_NUMBER = re.compile(r"[0-9]+(?=\.)|(?<=\.)[0-9]+\Z")
"""The number of a layer in a name: before a dot, or after the last one."""


_IN_PATH = re.compile(r"[0-9]{1,9}(?=\.|\Z)")
"""The same in a module path, whose last part is no number that a value has beside others of its name."""


def of_any_layer(name: str, is_path: bool = False) -> str:
    """Return a name or a module path with the numbers of layers as `*`: `layers.3.mlp` is `layers.*.mlp`."""
    return (_IN_PATH if is_path else _NUMBER).sub("*", name)


def numbered_layer(path: str) -> tuple[str, int] | None:
    """Return a module path before its first number, and that: ("model.layers.", 3) of `model.layers.3.mlp.up`."""
    found = _IN_PATH.search(path)
    return (path[: found.start()], int(found[0])) if found else None


def layer_of(path: str) -> str:
    """Return a module path up to its first number: `model.layers.3` of `model.layers.3.mlp.up`; all of it if there is
    none."""
    found = _IN_PATH.search(path)
    return path[: found.end()] if found else path


def numbered_modules(path: str) -> list[str]:
    """Return the modules around and at a path whose names have a number: `layers.3` of `layers.3.mlp`."""
    return [path[: found.end()] for found in _IN_PATH.finditer(path)]


def equal_layers(
    entries: Iterable[Entry],
    labels: Callable[[Entry], tuple[str, ...]],
    look: Callable[[Entry], Hashable],
    paths: Container[int] = (),
) -> list[tuple[tuple[str, ...], list[Entry]]]:
    """Return entries with those of equal layers together, with the labels of all of them.

    Args:
        labels: of an entry; those of equal layers differ in the number of a layer alone.
        look: equal for those of equal layers, beside their labels.
        paths: which of the labels are module paths, by place.
    """
    families: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        family = tuple([of_any_layer(label, at in paths) for at, label in enumerate(labels(entry))])
        families.setdefault(family, []).append(entry)
    found: list[tuple[tuple[str, ...], list[Entry]]] = []
    for family in families.values():
        alike: dict[Hashable, list[Entry]] = {}
        for entry in family:
            alike.setdefault(look(entry) if len(family) > 1 else None, []).append(entry)
        found += [(_labels(list(map(labels, equal)), len(family), paths), equal) for equal in alike.values()]
    return found


def rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    """Return numbers without the last digits, in which those of equal layers differ by the order of additions."""
    return tuple([float(f"{number:.6g}") for number in numbers])


def _labels(rows: Sequence[tuple[str, ...]], every: int, paths: Container[int]) -> tuple[str, ...]:
    """Return one label for each column of several rows."""
    columns = enumerate(zip(*rows, strict=True))
    return tuple([
        column[0] if len({*column}) == 1 else layers_text(column, every, at in paths) for at, column in columns
    ])  # fmt: skip


def layers_text(names: Sequence[str], every: int, is_path: bool = False) -> str:
    """Return one name for several that differ in the number of a layer.

    Args:
        names: in order; one stays as it is.
        every: how many there are of this name with any number; if `names` are fewer, their numbers are listed.
        is_path: whether they are module paths.
    """
    if len(names) == 1:
        return names[0]
    star = of_any_layer(names[0], is_path)
    if len(names) == every or star.count("*") != 1:
        return star
    before, after = star.split("*")
    return f"{before}{{{_ranges(sorted(int(name[len(before) : len(name) - len(after)]) for name in names))}}}{after}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as `0-3,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
