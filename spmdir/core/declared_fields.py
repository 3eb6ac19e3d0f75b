"""Checks of the fields and functions that plug-ins declare.

Fields are checked when an object is constructed, and functions each time they are called. A class lists the kinds of
its fields in a table, and checks them in `__attrs_post_init__`:

    FIELDS = {"name": TEXT, "wire": Function("sizes", returns=AMOUNT)}

    def __attrs_post_init__(self) -> None:
        check_fields(self, FIELDS)

The field `wire` then contains a `GuardedFunction`. If a call fails, or returns a value that is not an AMOUNT, a
`PluginError` names the field and the line of the plug-in.
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
    """The kind of a field that contains functions or a sequence; `check_fields` also accepts a `Kind`."""

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        """Return `value` with its functions guarded; raise ShardingError if the field cannot have this value."""
        ...


@attrs.frozen(eq=False)
class GuardedFunction:
    """A function of a plug-in whose failures and results are checked.

    Attributes:
        field: the name of the field that contains it.
        owner: the object with the field, for messages, such as "CollectiveSpec 'scatter'".
        function: the function itself.
        returns: the kind of its results.
    """

    field: str
    owner: str
    function: Callable[..., Any]
    returns: Kind

    def __call__(self, *arguments: Any) -> Any:
        return evaluated(self.field, self.function, *arguments, owner=self.owner, returns=self.returns)


class Function:
    """The kind of a field that contains a function.

    Args:
        parameters: the names of its parameters, for messages.
        returns: the kind of its results.
        optional: whether the field may be None.
    """

    def __init__(self, *parameters: str, returns: Kind = ANYTHING, optional: bool = False):
        self.parameters, self.returns, self.optional = parameters, returns, optional

    @property
    def expected(self) -> str:
        """Description of the kind, for messages."""
        return f"a function of ({', '.join(self.parameters)})"

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        """Return the function in a GuardedFunction; a function of spmdir itself, and an optional None, unchanged."""
        if value is None and self.optional:
            return None
        function = value.function if isinstance(value, GuardedFunction) else value
        if not callable(function):
            raise wrong_field(field, owner, value, self.expected)
        if not _accepts_arguments(function, len(self.parameters)):
            raise ShardingError(
                f"`{field}` of {owner} is a function of {_signature(function)}; expected {self.expected}",
                place(function),
            )
        return function if _is_part_of_spmdir(function) else GuardedFunction(field, owner, function, self.returns)


class Tuple:
    """The kind of a field that contains several values of `kind`; a list is converted to a tuple."""

    def __init__(self, kind: Kind, expected: str):
        self.kind, self.expected = kind, expected

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or not all(map(self.kind.holds, value)):
            raise wrong_field(field, owner, value, self.expected)
        return tuple(value)


class Functions:
    """The kind of a field that contains a dict of functions.

    Args:
        key: the kind of the keys.
        function: the kind of the functions.
        expected: description of the kind, for messages.
    """

    def __init__(self, key: Kind, function: Function, expected: str):
        self.key, self.function, self.expected = key, function, expected

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(map(self.key.holds, value)):
            raise wrong_field(field, owner, value, self.expected)
        return {key: self.function.guarded(f"{field}[{key!r}]", owner, function) for key, function in value.items()}


def check_fields(value: Any, fields: Mapping[str, Kind | FieldKind]) -> None:
    """Check the fields of a new attrs object, and guard the functions in them.

    Args:
        fields: name of a field → its kind.

    Raises:
        ShardingError: a field has a value of another kind. The location is the line that constructs the object.
    """
    name = getattr(value, "name", None)
    owner = f"{type(value).__name__} '{name}'" if isinstance(name, str) and name else type(value).__name__
    for field, kind in fields.items():
        field_value = getattr(value, field)
        try:
            if not isinstance(kind, Kind):
                checked_value = kind.guarded(field, owner, field_value)
            elif kind.holds(field_value):
                checked_value = field_value
            else:
                raise wrong_field(field, owner, field_value, kind.expected)
        except SpmdirError as error:
            raise error.at(caller_place()) from None
        if checked_value is not field_value:
            object.__setattr__(value, field, checked_value)  # the object is frozen


def wrong_field(field: str, owner: str, value: object, expected: str) -> ShardingError:
    """Return the error for a field whose value is not of the kind that `expected` describes."""
    return ShardingError(f"`{field}` of {owner} is {shown(value)} of type {type(value).__name__}; expected {expected}")


def evaluated(
    name: str, function: Callable[..., Any], *arguments: Any, owner: str = "", returns: Kind = ANYTHING
) -> Any:
    """Call a function of a plug-in, check its result, and return the result.

    A SpmdirError of the function is not changed. Any other exception becomes a PluginError.

    Args:
        name: the field that declares the function, for messages.
        owner: the object with the field, for messages.
        returns: the kind of the result.

    Raises:
        PluginError: the function fails, or its result is of another kind. The location is a line of the plug-in.
    """
    subject = f"`{name}` of {owner}" if owner else f"`{name}`"
    try:
        result = function(*arguments)
    except SpmdirError:
        raise
    except (Exception, SystemExit) as error:
        # A plug-in may raise any exception. The user sees one error: this declaration is wrong.
        reason = f"{type(error).__name__}: {error}"
        error_place = _line_in(function, error) or place(function)
        raise PluginError(
            f"{subject} fails for ({_shorten(arguments)}): {reason}; expected a result for these arguments: "
            "correct the function",
            error_place,
        ) from error
    if returns is not ANYTHING and not returns.holds(result):
        raise PluginError(
            f"{subject} returns {shown(result)} of type {type(result).__name__} for ({_shorten(arguments)}); expected "
            f"{returns.expected}",
            place(function),
        )
    return result


def place(function: Any) -> Location | None:
    """Return the location of the definition of a function; None if it is not written in Python."""
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, 1) if code is not None else None


def caller_place() -> Location | None:
    """Return the innermost line of the call stack that is outside of spmdir and attrs; None if there is none.

    Code without a file, such as a generated `__init__`, is skipped.
    """
    frame = sys._getframe(1)
    while frame is not None:
        is_inside = frame.f_globals.get("__name__", "").partition(".")[0] in ("spmdir", "attr")
        if not is_inside and not frame.f_code.co_filename.startswith("<"):
            return Location(frame.f_code.co_filename, frame.f_lineno, 1)
        frame = frame.f_back
    return None


def _line_in(function: Any, error: BaseException) -> Location | None:
    """Return the innermost line of the traceback of `error` in the file that defines `function`.

    Returns None if no line is in that file, or if the function is not written in Python.
    """
    definition = place(function)
    if definition is None:
        return None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == definition.file and frame.lineno is not None:
            return Location(definition.file, frame.lineno, 1)
    return None


def _shorten(arguments: tuple[Any, ...]) -> str:
    """Return the arguments as text for a message, each with at most 200 characters."""
    texts = []
    for argument in arguments:
        try:
            text = " ".join(str(argument).split())
        except Exception:  # the class of the argument may belong to a plug-in
            text = f"a {type(argument).__name__}"
        texts.append(text if len(text) <= 200 else f"{text[:200]}…")
    return ", ".join(texts)


def _accepts_arguments(function: Any, count: int) -> bool:
    """Return whether a function can be called with `count` positional arguments.

    Returns True if its signature is not available, as for some functions written in C.
    """
    code = getattr(function, "__code__", None)
    # `inspect.signature` is slow, and most functions have only plain parameters.
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
    """Return the parameters of a function as text. Its signature must be available."""
    return str(inspect.signature(function)).partition(" -> ")[0]


def _is_part_of_spmdir(function: Any) -> bool:
    """Return whether spmdir defines a function. Such a function is called often and tested, so it is not guarded."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "spmdir"
