"""What the command-line tools share: reading, writing, and how errors and warnings reach the user."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TextIO

from spmdir.errors import SpmdirError, SpmdirErrors, SpmdirWarning, did_you_mean, place
from spmdir.tools.plugins import place_in_plugin


class ArgumentParser(argparse.ArgumentParser):
    """An argument parser whose refusals are SpmdirErrors that name the nearest option."""

    def parse(self, argv: Sequence[str], passes: Sequence[str] = ()) -> argparse.Namespace:
        """The options in `argv`; `passes` are further option names worth suggesting."""
        options, unknown = self.parse_known_args(argv)
        if unknown:
            found = unknown[0].partition("=")[0]
            self.error(f"unknown option '{found}'{did_you_mean(found, [*self._option_string_actions, *passes])}")
        return options

    def error(self, message: str) -> NoReturn:
        raise SpmdirError(f"{message}; see {self.prog} --help")


def parse_sizes(text: str) -> dict[str, int]:
    """`s0=8,s1=5` → the number of each size; for argparse.

    Raises:
        ArgumentTypeError: the text is malformed.
    """
    sizes: dict[str, int] = {}
    for part in filter(str.strip, text.split(",")):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not number.isdecimal() or len(number) > 18:
            raise argparse.ArgumentTypeError(f"'{part}' is no size; expected name=number, as in s0=8,s1=5")
        sizes[name] = int(number)
    return sizes


def guarded(body: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """The exit status of a tool: what `body` returns, 1 after a refusal, 2 after an internal error.

    Refusals, among them what plug-ins raise, and warnings go to stderr, one a line; a traceback appears only when
    SPMDIR_DEBUG is set.
    """
    try:
        with shown_warnings(lambda warning: print(warning, file=sys.stderr)):
            status = body(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except SpmdirError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has left, as in `spmd-opt … | head`; Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("SPMDIR_DEBUG"):
            raise
        if (where := place_in_plugin(error)) is not None:
            print(SpmdirError(f"plug-in failed: {type(error).__name__}: {error}", where), file=sys.stderr)
            return 1
        print(
            f"error: internal error, please report: {type(error).__name__}: {error} "
            "(set SPMDIR_DEBUG=1 for the traceback)",
            file=sys.stderr,
        )
        return 2


@contextmanager
def shown_warnings(show: Callable[[SpmdirWarning], None]) -> Iterator[None]:
    """Hand every SpmdirWarning issued inside to `show`, repeated ones too."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", SpmdirWarning)
        default = warnings.showwarning

        def route(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if isinstance(message, SpmdirWarning):
                show(message)
            else:
                default(message, category, filename, lineno, file, line)

        warnings.showwarning = route
        yield


def flat(error: SpmdirError) -> list[SpmdirError]:
    """The single refusals in `error`."""
    return list(error.errors) if isinstance(error, SpmdirErrors) else [error]


def read_text(path: str) -> tuple[str, str]:
    """Text and display name of the file at `path`; `-` is stdin.

    Raises:
        SpmdirError: the file cannot be read or is no UTF-8 text.
    """
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode(), "<stdin>"
        with open(path, encoding="utf-8", newline="") as file:
            return file.read(), path
    except OSError as error:
        raise SpmdirError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        where = place(error.object, error.start, "<stdin>" if path == "-" else path)
        raise SpmdirError(f"the byte {error.object[error.start]:#x} is no UTF-8 text", where) from None


def write_text(path: str | None, text: str) -> None:
    """Write `text` to the file at `path`, whole or not at all; None and `-` are stdout.

    Raises:
        SpmdirError: the file cannot be written.
    """
    import tempfile  # 10 ms, and only `-o` needs it

    if path is None or path == "-":
        sys.stdout.write(text)
        return
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
            kept = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else 0o666 & ~_umask()
            os.chmod(temporary, kept)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SpmdirError(f"cannot write '{path}': {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
