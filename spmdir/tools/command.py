"""Reading, writing, errors and warnings of the command-line tools."""

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


def in_colour(color: str, stream: TextIO | None) -> bool:
    """Return whether to colour output to `stream`; None is a closed stream.

    `always` and `never` decide. With `auto`, output is coloured on a terminal, unless NO_COLOR is set (no-color.org).

    Args:
        color: the value of `--color`.
    """
    is_terminal = stream is not None and stream.isatty()
    return color == "always" or (color == "auto" and is_terminal and not os.environ.get("NO_COLOR"))


def print_with_axes(text: str, axes: Sequence[str], color: str) -> None:
    """Print a text, with coloured `axes` according to the value of `--color`."""
    if in_colour(color, sys.stdout):
        from spmdir.tools.terminal import axes_in_colour

        text = axes_in_colour(text, axes)
    write_text(None, f"{text}\n")


def run_tool(body: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run the `body` of a tool and return the exit status: that of `body`, or 1, 2 or 130 after an exception.

    The status is 1 after an error, 2 after an internal error, and 130 after Ctrl-C. Errors, including exceptions of
    plug-ins, and warnings are printed to stderr, one on each line. A traceback is printed only if SPMDIR_DEBUG is set.
    """
    try:
        with shown_warnings(lambda warning: print(warning, file=sys.stderr)), shown_on_terminal():
            status = body(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # it is None after `>&-`
            sys.stdout.flush()
        return status
    except SpmdirError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        if argv is None:
            # The process belongs to the tool, and cleanup has run. A regular exit could be interrupted again.
            os._exit(130)
        return 130
    except (BrokenPipeError, RecursionError, MemoryError) as error:
        if isinstance(error, RecursionError) and _print_plugin_error(error):
            return 1
        if isinstance(error, BrokenPipeError):
            _drop_output()  # the reader has closed the pipe, as in `spmd-opt … | head`
        else:
            print(
                f"error: the input is nested too deeply or too large: {type(error).__name__}; expected a smaller input",
                file=sys.stderr,
            )
        return 1
    except SystemExit as error:
        if _print_plugin_error(error):
            return 1
        raise
    except BaseException as error:  # xDSL has errors that are not Exceptions
        if os.environ.get("SPMDIR_DEBUG"):
            raise
        if _print_plugin_error(error):
            return 1
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _drop_output()
            print(
                f"error: cannot write the output: {error.strerror}; free space, or write to another place with -o",
                file=sys.stderr,
            )
            return 1
        print(
            f"error: internal error, please report: {type(error).__name__}: {error} "
            "(set SPMDIR_DEBUG=1 for the traceback)",
            file=sys.stderr,
        )
        return 2


def _print_plugin_error(error: BaseException) -> bool:
    """Print `error` with the line of the plug-in if code of a plug-in raised it. Return whether it did."""
    failure = plugin_failure(error)
    if failure is not None:
        print(failure, file=sys.stderr)
    return failure is not None


def run_in_process(command: Sequence[str], text: str) -> tuple[int, str, str]:
    """Run a tool in this process with `text` on stdin, and return exit status, stdout and stderr.

    Raises:
        SystemExit: the tool exits early, as for `--help`.
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
"""The error numbers of a write to a full or broken device."""


def _drop_output() -> None:
    """Discard the buffer of stdout: Python would print another error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def shown_warnings(show: Callable[[SpmdirWarning], None]) -> Iterator[None]:
    """Call `show` for each SpmdirWarning in the context, also for repeated ones."""
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
            """Show a SpmdirWarning; pass any other warning to the function that showed warnings before."""
            if isinstance(message, SpmdirWarning):
                show(message)
            else:
                default(message, category, filename, lineno, file, line)

        warnings.showwarning = route
        yield


def read_text(path: str) -> tuple[str, str]:
    """Return the text and the display name of the file at `path`. `-` is stdin.

    Raises:
        SpmdirError: the file cannot be read or is not UTF-8 text.
    """
    if path == "-":
        return decoded(sys.stdin.buffer.read(CHARACTERS.most + 1), "<stdin>"), "<stdin>"
    return read_text_file(path, f"'{path}'"), path


def write_text(path: str | None, text: str, about: str = "-") -> None:
    """Write `text` to the file at `path` atomically. None and `-` are stdout.

    Args:
        about: the input file, if it must not be overwritten, because `text` is a report and not a new form of it.

    Raises:
        SpmdirError: the file cannot be written, or is the input file.
    """
    if path is None or path == "-":
        if sys.stdout is None:
            raise SpmdirError(
                "cannot write the output: standard output is closed; expected an open one: open it, or write "
                "to a file with -o"
            )
        sys.stdout.write(text)
        return
    if about != "-" and os.path.exists(path) and os.path.samefile(path, about):
        raise SpmdirError(f"cannot write '{path}': it is the input file; expected another file")
    write_text_file(path, text)
