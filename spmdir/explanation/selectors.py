"""Match selectors: texts that select values by name, source line, module path or glob."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from spmdir.core.errors import SpmdirError, did_you_mean, printable, shown
from spmdir.dialects.locations import SourcePlaces

_LINE = re.compile(r"(.+):([0-9]{1,9})")


def matches(places: SourcePlaces, names: Sequence[str], selector: str) -> bool:
    """Return whether a selector matches an op or argument.

    A selector is `%name`, `file.py:line` with or without folders, a module path, or a glob of names or module paths. A
    module path includes all submodules.

    Args:
        places: the module paths and the source lines of the op.
        names: the names of its values.
    """
    line = _LINE.fullmatch(selector)
    if line:
        return any(_is_file(file, line[1]) and number == int(line[2]) for file, number in places.frames)
    if any(fnmatchcase(name, selector) or fnmatchcase(name, f"%{selector}") for name in names):
        return True
    return any(fnmatchcase(path, selector) or fnmatchcase(path, f"{selector}.*") for path in places.paths)


def selected_module(places: SourcePlaces, selector: str) -> str:
    """Return the outermost enclosing module that a selector matches, else the module of the op; empty if it has none.

    `layers.*` matches `layers.0` of `layers.0.mlp.up`.
    """
    path = next(iter(places.paths), "")
    parts = path.split(".")
    outer = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((outer_path for outer_path in outer if fnmatchcase(outer_path, selector)), path)


def no_match_error(selector: str, values: Mapping[str, SourcePlaces]) -> SpmdirError:
    """Return the error for a selector without a match, with the most similar name, path or line.

    Args:
        values: name of a value → its places.
    """
    paths = {path: None for places in values.values() for path in places.paths}
    if not paths and not selector.startswith("%"):
        hint = did_you_mean(f"%{selector}", values) or "; the name of a value begins with %, as in %mm"
        return SpmdirError(
            f"no value matches {shown(selector)}: the text has no module paths or lines of a model's source; print "
            f"them with --print-debuginfo of spmd-translate or spmd-opt, or print_ir(module, debuginfo=True){hint}"
        )
    line = _LINE.fullmatch(selector)
    if line:
        hint = _nearest_line_hint(line, values.values())
    else:
        hint = did_you_mean(selector, values if selector.startswith("%") else paths)
    return SpmdirError(
        f"no value matches {shown(selector)}; expected the name of a value before propagate, such as %mm, a line "
        f"such as model.py:12, the path of a module, or a glob{hint}"
    )


def _nearest_line_hint(selected_line: re.Match[str], places: Iterable[SourcePlaces]) -> str:
    """Return a hint: the nearest line of the selected file that produces a value, or a file with a similar name."""
    frames = {frame: None for value_places in places for frame in value_places.frames}
    lines = [line for file, line in frames if _is_file(file, selected_line[1])]
    if not lines:
        return did_you_mean(selected_line[1], {file.rpartition("/")[2]: None for file, _ in frames})
    nearest = min(lines, key=lambda line: abs(line - int(selected_line[2])))
    return f"; the nearest line with a value is {printable(selected_line[1])}:{nearest}"


def _is_file(file: str, text: str) -> bool:
    """Return whether two paths name one file; either may lack outer folders."""
    return file == text or file.endswith(f"/{text}") or text.endswith(f"/{file}")
