"""The exceptions and warnings of spmdir, and helpers for their messages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import AnyStr

import attrs


@attrs.frozen
class Location:
    """A position in a file.

    Attributes:
        file: the name of the file, or the path of a module of a model without source lines.
        line, column: counted from 1; 0 if `file` is the path of a module.
    """

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else f"module '{self.file}'"


def text_location(text: AnyStr, offset: int, file: str, first_line: int = 1) -> Location:
    """Return the location of an offset in a text or its bytes. The text starts on `first_line` of `file`."""
    newline = "\n" if isinstance(text, str) else b"\n"
    return Location(file, text.count(newline, 0, offset) + first_line, offset - text.rfind(newline, 0, offset))  # type: ignore


SHOWN = 60
"""The largest number of characters of a value in an error."""


class SpmdirError(Exception):
    """Base class of errors that a user can fix; `str` returns `file:line:col: error: message`.

    Attributes:
        message: what was found, what was expected, what to do.
        location: position in the input; None if the input has no text, as an fx graph without stack traces.
    """

    def __init__(self, message: str, location: Location | None = None):
        self.message = message
        self.location = location
        super().__init__(message)

    def at(self, location: Location | None, subject: str = "") -> SpmdirError:
        """Return a copy with `subject: ` before the message, and with `location` if it has no location yet."""
        return type(self)(f"{subject}: {self.message}" if subject else self.message, self.location or location)

    def __str__(self) -> str:
        prefix = f"{self.location}: " if self.location else ""
        return f"{prefix}error: {self.message}"


class ParseError(SpmdirError):
    """Malformed text: IR, rule, rewrite, plan, sharding or placement."""


class ShardingError(SpmdirError):
    """A sharding that its mesh, its tensor or its op cannot have."""


class RuleError(SpmdirError):
    """A rule that does not fit the op it is applied to."""


class UnsupportedError(SpmdirError):
    """A program that cannot be partitioned without changing its results."""


class PluginError(SpmdirError):
    """Code of a plug-in that fails or returns an invalid result."""


class CheckError(SpmdirError):
    """An imported program with results that differ from the original: a bug of the importer."""


class LimitError(SpmdirError):
    """An input beyond one of the limits of `spmdir.core.limits`."""


class DivergenceError(SpmdirError):
    """Ranks with different collectives or different inputs, which would hang or compute wrong results."""


CLASSES: dict[str, type[SpmdirError]] = {
    kind.__name__: kind
    for kind in (
        ParseError,
        ShardingError,
        RuleError,
        UnsupportedError,
        PluginError,
        CheckError,
        LimitError,
        DivergenceError,
    )
}
"""Name → class of the errors that ranks send to each other as a name, a message and a location."""


class SpmdirErrors(SpmdirError):
    """Several errors of one run, printed one per line."""

    def __init__(self, errors: list[SpmdirError]):
        super().__init__(errors[0].message, errors[0].location)
        self.errors = errors

    def at(self, location: Location | None, subject: str = "") -> SpmdirError:
        return SpmdirErrors([error.at(location, subject) for error in self.errors])

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def flat(error: SpmdirError) -> list[SpmdirError]:
    """Return the errors that a SpmdirErrors consists of. Any other error is returned as the only one."""
    return list(error.errors) if isinstance(error, SpmdirErrors) else [error]


def raise_all(errors: Sequence[SpmdirError]) -> None:
    """Raise the errors, several as one SpmdirErrors; do nothing if there are none."""
    if errors:
        raise errors[0] if len(errors) == 1 else SpmdirErrors([*errors])


class SpmdirWarning(UserWarning):
    """A warning about valid input; `str` returns `file:line:col: warning: message`."""

    def __init__(self, message: str, location: Location | None = None):
        self.message = message
        self.location = location
        super().__init__(message)

    def __str__(self) -> str:
        prefix = f"{self.location}: " if self.location else ""
        return f"{prefix}warning: {self.message}"


_INTERNAL_PACKAGES = ("spmdir", "xdsl", "torch", "contextlib")
"""Packages whose stack frames are skipped to find the user's line for a warning."""

_ISSUES: ContextVar[bool] = ContextVar("whether warnings are issued", default=True)
_ISSUED: ContextVar[set[str] | None] = ContextVar("messages that are not issued again", default=None)


@contextmanager
def warnings_issued(issues: bool = True, issued: set[str] | None = None) -> Iterator[None]:
    """Enable the warnings of `warn` inside the context, or disable them if `issues` is False.

    If an outer context disables warnings, they stay disabled.

    Args:
        issued: messages that are not issued again. `warn` adds each message that it issues. By default the set of the
            outer context; outside of all contexts, messages may be issued repeatedly.
    """
    issues_token = _ISSUES.set(issues and _ISSUES.get())
    issued_token = _ISSUED.set(_ISSUED.get() if issued is None else issued)
    try:
        yield
    finally:
        _ISSUES.reset(issues_token)
        _ISSUED.reset(issued_token)


def warn(message: str, location: Location | None = None) -> None:
    """Issue a SpmdirWarning for the user's line that leads to this call; the tools print the warning to stderr.

    Nothing happens if `warnings_issued` disables warnings, or if its set contains the message.
    """
    issued = _ISSUED.get()
    if not _ISSUES.get() or (issued is not None and message in issued):
        return
    if issued is not None:
        issued.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(SpmdirWarning(message, location), stacklevel=level)


def remark_text(text: str, location: Location | None) -> str:
    """Format `text` as `file:line:col: remark: text`, for information that requires no action."""
    return f"{location}: remark: {text}" if location else f"remark: {text}"


def print_remark(text: str, location: Location | None = None) -> None:
    """Print a remark to stderr."""
    print(remark_text(text, location), file=sys.stderr)


def did_you_mean_glob(glob: str, names: Iterable[str]) -> str:
    """Correct the parts of a glob that occur in no name, and return `; did you mean 'x'?` with the corrected glob.

    The result is "" if no name matches the corrected glob. Parts with wildcards are not corrected.

    Example:
        >>> did_you_mean_glob("*.q_prj.weight", ["layers.0.q_proj.weight"])
        "; did you mean '*.q_proj.weight'?"
    """
    import difflib

    names = list(names)
    known_parts = list(dict.fromkeys(part for name in names for part in name.split(".")))
    parts = glob.split(".")
    for index, part in enumerate(parts):
        if part not in known_parts and not set(part) & set("*?["):
            parts[index] = next(iter(difflib.get_close_matches(part, known_parts, n=1)), part)
    corrected_glob = ".".join(parts)
    has_match = any(fnmatchcase(name, corrected_glob) for name in names)
    return f"; did you mean '{corrected_glob}'?" if has_match else ""


def require_type(name: str, value: object, expected: type | tuple[type, ...], example: str) -> None:
    """Raise SpmdirError unless argument `name` is an instance of `expected`; `example` describes it in the error."""
    if not isinstance(value, expected):
        raise wrong_argument(name, value, example)


def wrong_argument(name: str, value: object, expected: str) -> SpmdirError:
    """Return the error for argument `name` with the wrong `value`; `expected` describes a right one."""
    return SpmdirError(f"{name} is {shown(value)} of type {type(value).__name__}; expected {expected}")


def shown(value: object) -> str:
    """Return the repr of `value` on one line, shortened to SHOWN characters; "a value" if its repr fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the repr of a huge integer fails, and that of a user's class may
        return "a value"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def printable(text: str) -> str:
    """Return `text` on one line: each unprintable character, such as a newline, is replaced by its escape sequence."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the candidate that is most similar to `name`; "" if none is similar."""
    import difflib  # 5 ms, and only wrong input needs it

    nearest = difflib.get_close_matches(name, list(candidates), n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
