"""What a question names: values by name, source line, module path or glob."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from spmdir.core.errors import SpmdirError, did_you_mean, printable, shown
from spmdir.dialects.locations import SourcePlaces

_LINE = re.compile(r"(.+):([0-9]{1,9})")


def is_at(places: SourcePlaces, names: Sequence[str], text: str) -> bool:
    """Return whether `text` names what is at `places` and has `names`.

    A text is `%name`, a glob of names or module paths, a module path, which stands for all below it, or `file.py:line`,
    where folders may be left out.
    """
    line = _LINE.fullmatch(text)
    if line:
        return any(_is_file(file, line[1]) and number == int(line[2]) for file, number in places.frames)
    if any(fnmatchcase(name, text) or fnmatchcase(name, f"%{text}") for name in names):
        return True
    return any(fnmatchcase(path, text) or fnmatchcase(path, f"{text}.*") for path in places.paths)


def module_named(places: SourcePlaces, text: str) -> str:
    """Return the outermost module of `places` that `text` names; else that of the op, empty if it has none.

    `layers.*` names `layers.0` of `layers.0.mlp.up`.
    """
    path = next(iter(places.paths), "")
    parts = path.split(".")
    outer = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((one for one in outer if fnmatchcase(one, text)), path)


def nothing_there(at: str, values: Mapping[str, SourcePlaces]) -> SpmdirError:
    """Return the error of a question that names nothing, with the nearest of what there is.

    Args:
        values: name → its places.
    """
    paths = {path: None for places in values.values() for path in places.paths}
    if not paths and not at.startswith("%"):
        near = did_you_mean(f"%{at}", values) or "; the name of a value begins with %, as in %mm"
        return SpmdirError(
            f"there is nothing at {shown(at)}: the text has no module paths, nor lines of a model's source; print them "
            f"with --print-debuginfo of spmd-translate or spmd-opt, or print_ir(module, debuginfo=True){near}"
        )
    line = _LINE.fullmatch(at)
    near = _near_line(line, values.values()) if line else did_you_mean(at, values if at.startswith("%") else paths)
    return SpmdirError(
        f"there is nothing at {shown(at)}; expected the name of a value before propagate, as %mm, a line as "
        f"model.py:12, the path of a module, or a glob{near}"
    )


def _near_line(asked: re.Match[str], places: Iterable[SourcePlaces]) -> str:
    """Return which line of the file that is asked about is the nearest that makes a value, or which file is meant."""
    frames = {frame: None for one in places for frame in one.frames}
    lines = [line for file, line in frames if _is_file(file, asked[1])]
    if not lines:
        return did_you_mean(asked[1], {file.rpartition("/")[2]: None for file, _ in frames})
    nearest = min(lines, key=lambda line: abs(line - int(asked[2])))
    return f"; the nearest line that makes one is {printable(asked[1])}:{nearest}"


def _is_file(file: str, text: str) -> bool:
    return file == text or file.endswith(f"/{text}") or text.endswith(f"/{file}")
