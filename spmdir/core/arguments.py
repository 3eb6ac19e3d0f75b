"""Checks of the arguments of public functions: `accepts` declares a `Kind` for each argument."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import attrs

from spmdir.core.errors import SpmdirError, did_you_mean, wrong_argument
from spmdir.core.plugin_code import plugin_failure

Function = TypeVar("Function", bound=Callable[..., Any])


@attrs.frozen
class Kind:
    """A set of values that an argument may have.

    Attributes:
        holds: returns whether a value is of this kind.
        expected: description of the kind, for the error message "…; expected {expected}".
        hint: (value of another kind) → end of the message with a remedy, such as "; pass its `.module`", or "".
    """

    holds: Callable[[Any], bool]
    expected: str
    hint: Callable[[Any], str] = lambda value: ""

    def check(self, name: str, value: object) -> None:
        """Raise SpmdirError unless `value`, passed as argument `name`, is of this kind."""
        if not self.holds(value):
            raise wrong_argument(name, value, f"{self.expected}{self.hint(value)}")

    @property
    def optional(self) -> Kind:
        """Return the kind that also holds for None."""
        return Kind(lambda value: value is None or self.holds(value), f"{self.expected}, or None", self.hint)


def instance(*types: type, expected: str) -> Kind:
    """Return the kind that holds for instances of `types`."""
    return Kind(lambda value: isinstance(value, types), expected)


def _is_named(value: Any) -> bool:
    """Return whether a value is a mapping whose keys are texts."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_path(value: Any) -> bool:
    """Return whether a value is a non-empty path that the operating system accepts."""
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value)) and "\0" not in str(os.fspath(value))


def is_amount(value: object) -> bool:
    """Return whether `value` is a finite number that is not negative."""
    number: Any = value
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= number <= sys.float_info.max


def keyed(expected: str) -> Kind:
    """Return the kind that holds for mappings whose keys are texts."""
    return Kind(_is_named, expected)


def many(kind: Kind, expected: str) -> Kind:
    """Return the kind that holds for lists and tuples of values of `kind`."""
    return Kind(lambda value: isinstance(value, (list, tuple)) and all(map(kind.holds, value)), expected)


TEXT = instance(str, expected="a text")
FLAG = instance(bool, expected="True or False")
INTEGER = instance(Integral, expected="an integer")
COUNT = Kind(lambda value: INTEGER.holds(value) and 0 <= value <= 10**6, "an integer from 0 to 1000000")
SEED = Kind(
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= value < 2**64,
    "an integer of 64 bits",
)
AMOUNT = Kind(is_amount, "a finite number of at least 0")
CALLABLE = Kind(callable, "a function")
PATH = Kind(_is_path, "the path of a file")
DIRECTORY = Kind(_is_path, "the path of a directory").optional
SIZES = instance(Mapping, expected="a dict from names to sizes, as in {'s0': 8}").optional
EXAMPLES = Kind(
    lambda value: isinstance(value, (list, tuple)),
    "a tuple of positional arguments",
    lambda value: "; pass keyword arguments as example_kwargs" if isinstance(value, Mapping) else "",
)
SHARDINGS = instance(Mapping, expected='a dict, as in {"x": "dp: S(0)"}').optional
OUT_SHARDINGS = instance(list, tuple, expected="a list with one entry for each output").optional
MISSING_RULE = Kind(lambda value: isinstance(value, str) and value in ("warn", "error"), "'warn' or 'error'")


RENAMED = {"shardings": "plan", "styles": "plan", "clip": "clip_grad_norm", "kwargs": "example_kwargs"}
"""Wrong name that users often pass → name of the argument."""


def accepts(**kinds: Kind) -> Callable[[Function], Function]:
    """Decorate a function with checks of its arguments.

    An unknown argument, a missing argument, or a value that is not of its kind raises SpmdirError. An exception in the
    code of a plug-in is raised again as a `PluginError` at the line in the plug-in.

    Args:
        kinds: argument name → kind of its values.
    """

    def decorate(function: Function) -> Function:
        """Return `function` with the checks."""
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            """Check the arguments, and call `function`."""
            check_call(signature, function.__name__, args, keywords)
            positional = tuple(signature.parameters)[: len(args)]
            check_kinds(kinds, {**dict(zip(positional, args, strict=False)), **keywords}, positional)
            try:
                return function(*args, **keywords)
            except SpmdirError:
                raise
            except Exception as error:
                failure = plugin_failure(error)
                if failure is None:
                    raise
                raise failure from error

        return checked  # type: ignore[return-value]

    return decorate


def check_kinds(kinds: Mapping[str, Kind], arguments: Mapping[str, Any], positional: Sequence[str] = ()) -> None:
    """Raise SpmdirError for an argument that is not of its kind.

    Args:
        kinds: argument name → kind.
        arguments: argument name → value.
        positional: names of the arguments that were passed by position. If a wrong value is valid for another one of
            these arguments, the message contains their order.
    """
    for name, value in arguments.items():
        if name in kinds and not kinds[name].holds(value):
            other_kinds = [kinds[other_name] for other_name in positional if other_name != name and other_name in kinds]
            is_misplaced = name in positional and any(kind.holds(value) for kind in other_kinds)
            order = f"; the order of arguments is ({', '.join(positional)})" if is_misplaced else ""
            raise wrong_argument(name, value, f"{kinds[name].expected}{kinds[name].hint(value)}{order}")


def check_call(signature: inspect.Signature, function: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Raise SpmdirError if a call with these arguments does not fit `signature`.

    The message names the first unknown keyword, if there is one. Otherwise it contains the reason of Python.

    Args:
        function: the name of the function, for the message.
    """
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        names = list(signature.parameters)
        unknown = next((name for name in keywords if name not in names), None)
        if unknown is not None:
            raise unknown_name(f"{function} has no argument", unknown, names) from None
        raise SpmdirError(f"wrong arguments for {function}: {error}; expected ({', '.join(names)})") from None


def unknown_name(prefix: str, name: str, accepted: Sequence[str], other_names: Sequence[str] = ()) -> SpmdirError:
    """Return the error for an argument or option `name` that is not one of `accepted`.

    Args:
        prefix: beginning of the message, such as "parallelize has no argument".
        other_names: valid names that the message does not list. They are only suggested in place of a wrong name in
            RENAMED.
    """
    renamed = RENAMED.get(name)
    hint = f"; use '{renamed}'" if renamed in (*accepted, *other_names) else did_you_mean(name, accepted)
    return SpmdirError(f"{prefix} '{name}'; expected {', '.join(accepted)}{hint}")
