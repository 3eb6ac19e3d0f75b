"""What a question names: values by name, source line, module path or glob."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from spmdir.core.errors import SpmdirError, did_you_mean, shown
from spmdir.dialects.source_places import SourcePlaces

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


def nothing_there(at: str, names: Iterable[str]) -> SpmdirError:
    """Return the error of a question that names nothing, with the nearest of `names`."""
    return SpmdirError(
        f"there is nothing at {shown(at)}; expected the name of a value before propagate, as %mm, a line as "
        f"model.py:12, the path of a module, or a glob{did_you_mean(at, names)}"
    )


def _is_file(file: str, text: str) -> bool:
    return file == text or file.endswith(f"/{text}") or text.endswith(f"/{file}")
