"""Errors of spmdir: one exception family, one message form."""

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
    """A place in a text.

    Attributes:
        file: its name.
        line, column: counted from 1; 0 where the file is the path of a module of a model without source lines.
    """

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else f"module '{self.file}'"


def text_location(text: AnyStr, offset: int, file: str, first_line: int = 1) -> Location:
    """Return the place of an offset in a text, or in the bytes of one, that begins on `first_line` of `file`."""
    newline = "\n" if isinstance(text, str) else b"\n"
    return Location(file, text.count(newline, 0, offset) + first_line, offset - text.rfind(newline, 0, offset))  # type: ignore


SHOWN = 60
"""How many characters of a value an error shows."""


class SpmdirError(Exception):
    """An error that a user can act on; prints as `file:line:col: error: message`.

    Attributes:
        message: what was found, what was expected, what to do.
        location: where, or None if the input has no text (a live fx graph without stack traces).
    """

    def __init__(self, message: str, location: Location | None = None):
        self.message = message
        self.location = location
        super().__init__(message)

    def at(self, location: Location | None, subject: str = "") -> SpmdirError:
        """Return this error with `subject: ` before its message, at `location` unless it has a location already."""
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
    """A program that cannot be partitioned exactly."""


class PluginError(SpmdirError):
    """Code of a plug-in that fails, or a result that it cannot give."""


class CheckError(SpmdirError):
    """A program that does not compute what it was imported from: a bug of the importer."""


class LimitError(SpmdirError):
    """An input beyond one of the limits of `spmdir.core.limits`."""


class DivergenceError(SpmdirError):
    """Ranks that would issue different collectives, or differ in what they begin with: they would hang or be wrong."""


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
"""Classes by name of the errors that a message and a location make, as one rank tells them to another."""


class SpmdirErrors(SpmdirError):
    """Several errors found in one run, printed one a line."""

    def __init__(self, errors: list[SpmdirError]):
        super().__init__(errors[0].message, errors[0].location)
        self.errors = errors

    def at(self, location: Location | None, subject: str = "") -> SpmdirError:
        return SpmdirErrors([error.at(location, subject) for error in self.errors])

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def flat(error: SpmdirError) -> list[SpmdirError]:
    """Return the single errors in `error`."""
    return list(error.errors) if isinstance(error, SpmdirErrors) else [error]


def raise_all(errors: Sequence[SpmdirError]) -> None:
    """Raise `errors`: one as it is, several together; nothing if there are none."""
    if errors:
        raise errors[0] if len(errors) == 1 else SpmdirErrors([*errors])


class SpmdirWarning(UserWarning):
    """Something legal that a user should look at; prints as `file:line:col: warning: message`."""

    def __init__(self, message: str, location: Location | None = None):
        self.message = message
        self.location = location
        super().__init__(message)

    def __str__(self) -> str:
        prefix = f"{self.location}: " if self.location else ""
        return f"{prefix}warning: {self.message}"


_NOT_THE_USERS = ("spmdir", "xdsl", "torch", "contextlib")
"""The packages whose frames stand between a warning and the line of the user that it is about."""


_ISSUES: ContextVar[bool] = ContextVar("whether warnings are issued", default=True)
_ISSUED: ContextVar[set[str] | None] = ContextVar("messages that are not issued again", default=None)


@contextmanager
def warnings_issued(issues: bool = True, issued: set[str] | None = None) -> Iterator[None]:
    """Let `warn` issue what is warned of inside the context, or nothing if not `issues`.

    Args:
        issued: the messages so far, which are not issued again, whatever line of the user leads to them.
    """
    tokens = _ISSUES.set(issues and _ISSUES.get()), _ISSUED.set(_ISSUED.get() if issued is None else issued)
    try:
        yield
    finally:
        _ISSUES.reset(tokens[0])
        _ISSUED.reset(tokens[1])


def warn(message: str, location: Location | None = None) -> None:
    """Issue a SpmdirWarning at the line of the user that led here; the tools print it to stderr."""
    issued = _ISSUED.get()
    if not _ISSUES.get() or (issued is not None and message in issued):
        return
    if issued is not None:
        issued.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(SpmdirWarning(message, location), stacklevel=level)


def remark_text(text: str, location: Location | None) -> str:
    """Return `text` as `file:line:col: remark: text`: information that asks for no action."""
    return f"{location}: remark: {text}" if location else f"remark: {text}"


def print_remark(text: str, location: Location | None = None) -> None:
    """Print a remark to stderr."""
    print(remark_text(text, location), file=sys.stderr)


def did_you_mean_glob(glob: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for a glob that matches, with the nearest part of a name for one that no name has.

    Example:
        >>> did_you_mean_glob("*.q_prj.weight", ["layers.0.q_proj.weight"])
        "; did you mean '*.q_proj.weight'?"
    """
    import difflib

    names = list(names)
    known = list(dict.fromkeys(part for name in names for part in name.split(".")))
    parts = glob.split(".")
    for index, part in enumerate(parts):
        if part not in known and not set(part) & set("*?["):
            parts[index] = next(iter(difflib.get_close_matches(part, known, n=1)), part)
    near = ".".join(parts)
    return f"; did you mean '{near}'?" if any(fnmatchcase(name, near) for name in names) else ""


def require_type(name: str, value: object, expected: type | tuple[type, ...], example: str) -> None:
    """Raise SpmdirError unless argument `name` is an instance of `expected`, which `example` describes."""
    if not isinstance(value, expected):
        raise wrong_argument(name, value, example)


def wrong_argument(name: str, value: object, expected: str) -> SpmdirError:
    """Return the error of a `value` given for argument `name` where `expected` was asked for."""
    return SpmdirError(f"{name} is {shown(value)} of type {type(value).__name__}; expected {expected}")


def shown(value: object) -> str:
    """Return the beginning of how Python writes `value`, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # numbers of thousands of digits have none, and what a user's class does is not known
        return "a value"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def printable(text: str) -> str:
    """Return `text` on one line, with escapes for what a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the name in `known` that is nearest to `found`, or nothing if none is near."""
    import difflib  # 5 ms, and only wrong input needs it

    nearest = difflib.get_close_matches(found, list(known), n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
