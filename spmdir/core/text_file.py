"""Files of text that a user names: read at once, bounded in size, as UTF-8."""

from __future__ import annotations

from pathlib import Path

from spmdir.core.errors import ParseError, place
from spmdir.core.limits import CHARACTERS


def read_text_file(path: str | Path, what: str) -> str:
    """Return the text of the file at `path`, its line ends as they are.

    Args:
        what: what messages call it, as in `rules from own.rules`.

    Raises:
        ParseError: the file cannot be read or is not UTF-8 text. LimitError: it is too long.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(CHARACTERS.most + 1)
    except (OSError, ValueError) as error:  # the latter of names that no file can have
        raise ParseError(f"cannot read {what}: {getattr(error, 'strerror', error)}") from None
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """Return the text that `data`, read from the file that messages call `name`, spells in UTF-8."""
    CHARACTERS.check(len(data))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = place(data, error.start, name)
        raise ParseError(f"the byte {data[error.start]:#x} is not UTF-8 text", where) from None


def file_beside(source: str | None, ending: str) -> Path | None:
    """Return the path of the file NAME`ending` beside the file NAME.py at `source`; None if there is none."""
    path = Path(source).with_suffix(ending) if source else None
    return path if path is not None and path.is_file() else None
