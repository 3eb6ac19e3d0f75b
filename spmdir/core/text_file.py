"""Read and write text files of users: UTF-8, limited in size, and written atomically."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spmdir.core.errors import ParseError, SpmdirError, text_location
from spmdir.core.limits import CHARACTERS

_ARCHIVE = b"PK\x03\x04"
"""The first bytes of a zip archive, the format of `torch.save` and `torch.export.save`."""


def read_text_file(path: str | Path, description: str) -> str:
    """Return the text of a file, without conversion of line ends.

    Args:
        description: name of the input in messages, such as "rules from own.rules".

    Raises:
        ParseError: the file cannot be read or is not UTF-8 text.
        LimitError: the file is too long.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(CHARACTERS.most + 1)
    except (OSError, ValueError) as error:  # ValueError for invalid names
        raise ParseError(
            f"cannot read {description}: {getattr(error, 'strerror', error)}; expected a readable file: correct "
            "the path"
        ) from None
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """Decode UTF-8 data from a file with this `name`.

    Raises:
        ParseError: the data are a zip archive or not UTF-8.
        LimitError: there are too many bytes.
    """
    CHARACTERS.check(len(data))
    if data.startswith(_ARCHIVE):
        raise ParseError(
            f"'{name}' is a zip archive; expected text; if torch.export.save wrote it, import it with spmd-translate "
            f"--import-pt2 {name} --mesh AXES, which prints IR"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = text_location(data, error.start, name)
        raise ParseError(
            f"the byte {data[error.start]:#x} is not UTF-8 text; expected a text file in UTF-8: convert it", where
        ) from None


def write_text_file(path: str | Path, text: str) -> None:
    """Write a text file atomically: no reader sees a part of it. Devices are written directly.

    Raises:
        SpmdirError: the file cannot be written.
    """
    import tempfile  # 10 ms, and only writing needs it

    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as device:
                device.write(text)
            return
        target = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".spmdir-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            # A new file gets the mode that `open` would give it, not the mode of `mkstemp`.
            mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else 0o666 & ~_umask()
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SpmdirError(
            f"cannot write '{path}': {error.strerror}; expected a path that can be written: choose another one"
        ) from None


def _umask() -> int:
    """Return the umask of the process. It can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def file_beside(source: str | None, ending: str) -> Path | None:
    """Return the path of `source` with its suffix replaced by `ending`; None if that file does not exist."""
    path = Path(source).with_suffix(ending) if source else None
    return path if path is not None and path.is_file() else None
