"""Fields and functions that plug-ins declare: checked when a value is made, guarded when a function is called.

A class lists the kinds of its fields in a table, and checks them in `__attrs_post_init__`:

    FIELDS = {"name": TEXT, "wire": Function("sizes", returns=AMOUNT)}

    def __attrs_post_init__(self) -> None:
        check_fields(self, FIELDS)

A function in the field `wire` is then a `GuardedFunction`. If it fails, or gives a result of another kind than AMOUNT,
a `PluginError` names the field and the line.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from spmdir.core.arguments import Kind
from spmdir.core.errors import Location, PluginError, ShardingError, SpmdirError, shown

ANYTHING = Kind(lambda value: True, "anything")


class FieldKind(Protocol):
    """What a field of a declaration may be; a `Kind` is one as well, by `check_fields`."""

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        """Return `value`, with its functions guarded; raise ShardingError if the field cannot have it."""
        ...


@attrs.frozen(eq=False)
class GuardedFunction:
    """A function that a plug-in gives for a field.

    Attributes:
        field: the name of the field.
        owner: the value with the field, for messages, as "CollectiveSpec 'scatter'".
        function: as the plug-in gives it.
        returns: the kind of its results.
    """

    field: str
    owner: str
    function: Callable[..., Any]
    returns: Kind

    def __call__(self, *arguments: Any) -> Any:
        return evaluated(self.field, self.function, *arguments, owner=self.owner, returns=self.returns)


class Function:
    """The kind of fields that have a function of some parameters.

    Args:
        parameters: their names, for messages.
        returns: the kind of its results.
        optional: whether the field may be None.
    """

    def __init__(self, *parameters: str, returns: Kind = ANYTHING, optional: bool = False):
        self.parameters, self.returns, self.optional = parameters, returns, optional

    @property
    def expected(self) -> str:
        """What a value of this kind is, for messages."""
        return f"a function of ({', '.join(self.parameters)})"

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        function = value.function if isinstance(value, GuardedFunction) else value
        if not callable(function):
            raise wrong_field(field, owner, value, self.expected)
        if not _takes(function, len(self.parameters)):
            raise ShardingError(
                f"`{field}` of {owner} is a function of {_signature(function)}; expected {self.expected}",
                place(function),
            )
        return function if _is_own(function) else GuardedFunction(field, owner, function, self.returns)


class Tuple:
    """The kind of fields that have several values of a kind; a list becomes a tuple."""

    def __init__(self, kind: Kind, expected: str):
        self.kind, self.expected = kind, expected

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or not all(map(self.kind.holds, value)):
            raise wrong_field(field, owner, value, self.expected)
        return tuple(value)


class Functions:
    """The kind of fields that have functions by name.

    Args:
        key: the kind of the names.
        function: the kind of the functions.
        expected: what a value of this kind is, for messages.
    """

    def __init__(self, key: Kind, function: Function, expected: str):
        self.key, self.function, self.expected = key, function, expected

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(map(self.key.holds, value)):
            raise wrong_field(field, owner, value, self.expected)
        return {key: self.function.guarded(f"{field}[{key!r}]", owner, given) for key, given in value.items()}


def check_fields(value: Any, fields: Mapping[str, Kind | FieldKind]) -> None:
    """Check the fields of a new attrs value, and guard the functions in them.

    Args:
        fields: name of a field → its kind.

    Raises:
        ShardingError: a field has a value of another kind; at the line that makes the value.
    """
    name = getattr(value, "name", None)
    owner = f"{type(value).__name__} '{name}'" if isinstance(name, str) and name else type(value).__name__
    for field, kind in fields.items():
        given = getattr(value, field)
        try:
            if not isinstance(kind, Kind):
                checked = kind.guarded(field, owner, given)
            elif kind.holds(given):
                continue
            else:
                raise wrong_field(field, owner, given, kind.expected)
        except SpmdirError as error:
            raise error.at(caller_place()) from None
        if checked is not given:
            object.__setattr__(value, field, checked)


def wrong_field(field: str, owner: str, value: object, expected: str) -> ShardingError:
    """Return the error of a field that has a value of another kind than `expected`."""
    return ShardingError(f"`{field}` of {owner} is {shown(value)} of type {type(value).__name__}; expected {expected}")


def evaluated(
    name: str, function: Callable[..., Any], *arguments: Any, owner: str = "", returns: Kind = ANYTHING
) -> Any:
    """Return `function(*arguments)`, what a plug-in declares as `name`.

    Args:
        owner: the value that has the function, for messages.
        returns: the kind of its results.

    Raises:
        PluginError: it fails, or its result is of another kind; at its place in the plug-in.
    """
    subject = f"`{name}` of {owner}" if owner else f"`{name}`"
    try:
        result = function(*arguments)
    except SpmdirError:
        raise
    except (Exception, SystemExit) as error:
        # Code of plug-ins raises whatever it likes; for the user it is one thing: this declaration is wrong.
        reason = f"{type(error).__name__}: {error}"
        where = _line_in(function, error) or place(function)
        raise PluginError(f"{subject} fails for ({_brief(arguments)}): {reason}", where) from error
    if returns is not ANYTHING and not returns.holds(result):
        raise PluginError(
            f"{subject} gives {shown(result)} of type {type(result).__name__} for ({_brief(arguments)}); expected "
            f"{returns.expected}",
            place(function),
        )
    return result


def place(function: Any) -> Location | None:
    """Return where a function is written."""
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, 1) if code is not None else None


def caller_place() -> Location | None:
    """Return the innermost line outside of spmdir that led here; None if there is none with a file."""
    frame = sys._getframe(1)
    while frame is not None:
        is_own = frame.f_globals.get("__name__", "").partition(".")[0] in ("spmdir", "attr")
        if not is_own and not frame.f_code.co_filename.startswith("<"):
            return Location(frame.f_code.co_filename, frame.f_lineno, 1)
        frame = frame.f_back
    return None


def _line_in(function: Any, error: BaseException) -> Location | None:
    """Return the innermost line of the function's file that `error` went through."""
    where = place(function)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    lines = (frame.lineno for frame in frames if where is not None and frame.filename == where.file)
    line = next(lines, None)
    return Location(where.file, line, 1) if where is not None and line is not None else None


def _brief(arguments: tuple[Any, ...]) -> str:
    texts = []
    for argument in arguments:
        try:
            text = " ".join(str(argument).split())
        except Exception:  # the argument's class may be a plug-in's too
            text = f"a {type(argument).__name__}"
        texts.append(text if len(text) <= 200 else f"{text[:200]}…")
    return ", ".join(texts)


def _takes(function: Any, count: int) -> bool:
    """Return whether a function can be called with `count` arguments; True if Python does not know."""
    code = getattr(function, "__code__", None)
    if code and inspect.isfunction(function) and not (code.co_flags & inspect.CO_VARARGS or code.co_kwonlyargcount):
        return code.co_argcount - len(function.__defaults__ or ()) <= count <= code.co_argcount
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _signature(function: Any) -> str:
    """Return the parameters of a function, whose signature Python knows."""
    return str(inspect.signature(function)).partition(" -> ")[0]


def _is_own(function: Any) -> bool:
    """Return whether a function is one of spmdir, which tests check and which is called often."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "spmdir"
