"""What the command-line tools share: reading, writing, and how errors and warnings reach the user."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import BytesIO, StringIO, TextIOWrapper
from typing import TextIO

from spmdir.core.errors import SpmdirError, SpmdirWarning
from spmdir.core.limits import CHARACTERS
from spmdir.core.plugin_code import plugin_failure
from spmdir.core.progress import shown_on_terminal
from spmdir.core.text_file import decoded, read_text_file, write_text_file


def in_colour(when: str, stream: TextIO | None) -> bool:
    """Return whether what goes to `stream`, None if it is closed, is in colour, as `--color` says; see no-color.org."""
    is_terminal = stream is not None and stream.isatty()
    return when == "always" or (when == "auto" and is_terminal and not os.environ.get("NO_COLOR"))


def print_with_axes(text: str, axes: Sequence[str], when: str) -> None:
    """Print a text, each of `axes` in its colour if `--color` says so by `when`."""
    if in_colour(when, sys.stdout):
        from spmdir.tools.terminal import axes_in_colour

        text = axes_in_colour(text, axes)
    write_text(None, f"{text}\n")


def guarded(body: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Return the exit status of a tool: what `body` returns, 1 after an error, 2 after an internal one, 130 after
    Ctrl-C.

    Errors, among them what plug-ins raise, and warnings go to stderr, one a line; a traceback appears only when
    SPMDIR_DEBUG is set.
    """
    try:
        with shown_warnings(lambda warning: print(warning, file=sys.stderr)), shown_on_terminal():
            status = body(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # as `>&-` leaves it
            sys.stdout.flush()
        return status
    except SpmdirError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        if argv is None:
            # The process is ours, and what was begun has been undone; to end it tidily would leave time for more.
            os._exit(130)
        return 130
    except (BrokenPipeError, RecursionError, MemoryError) as error:
        if isinstance(error, RecursionError) and _is_of_plugin(error):
            return 1
        if isinstance(error, BrokenPipeError):
            _drop_output()  # the reader has left, as in `spmd-opt … | head`
        else:
            print(f"error: the input is nested too deeply or too large: {type(error).__name__}", file=sys.stderr)
        return 1
    except SystemExit as error:
        if _is_of_plugin(error):
            return 1
        raise
    except BaseException as error:  # xDSL has errors that are not Exceptions
        if os.environ.get("SPMDIR_DEBUG"):
            raise
        if _is_of_plugin(error):
            return 1
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _drop_output()
            print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
            return 1
        print(
            f"error: internal error, please report: {type(error).__name__}: {error} "
            "(set SPMDIR_DEBUG=1 for the traceback)",
            file=sys.stderr,
        )
        return 2


def _is_of_plugin(error: BaseException) -> bool:
    """Return whether code of a plug-in raised `error`; it is printed then, at its line."""
    failure = plugin_failure(error)
    if failure is not None:
        print(failure, file=sys.stderr)
    return failure is not None


def run_in_process(command: Sequence[str], text: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a tool with arguments, run in this process with `text` on its stdin.

    Raises:
        SystemExit: the tool ends early, as `--help` does.
    """
    tool, *arguments = command
    main = import_module(f"spmdir.tools.{tool.replace('-', '_')}").main
    stdout, stderr = StringIO(), StringIO()
    stdin, sys.stdin = sys.stdin, TextIOWrapper(BytesIO(text.encode()))
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            status = main(arguments)
    finally:
        sys.stdin = stdin
    return status, stdout.getvalue(), stderr.getvalue()


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a write to a device that is full."""


def _drop_output() -> None:
    """Discard what stdout still buffers, so that Python does not complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def read_text(path: str) -> tuple[str, str]:
    """Return text and display name of the file at `path`; `-` is stdin.

    Raises:
        SpmdirError: the file cannot be read or is not UTF-8 text.
    """
    if path == "-":
        return decoded(sys.stdin.buffer.read(CHARACTERS.most + 1), "<stdin>"), "<stdin>"
    return read_text_file(path, f"'{path}'"), path


def write_text(path: str | None, text: str, about: str = "-") -> None:
    """Write `text` to the file at `path` atomically; None and `-` are stdout.

    Args:
        about: the file that was read, where the text is no new form of it: it is not written over.

    Raises:
        SpmdirError: the file cannot be written, or is the one that was read.
    """
    if path is None or path == "-":
        if sys.stdout is None:
            raise SpmdirError("cannot write the output: standard output is closed")
        sys.stdout.write(text)
        return
    if about != "-" and os.path.exists(path) and os.path.samefile(path, about):
        raise SpmdirError(f"cannot write '{path}': it is what was read, and would be lost; expected another file")
    write_text_file(path, text)
