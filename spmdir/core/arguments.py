"""Types and forms of the arguments of public functions, declared next to them and checked on entry."""

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
    """A kind of argument.

    Attributes:
        holds: whether a value is of the kind.
        expected: what the error message expects.
        hint: what to do about a value of another kind, as "; give its `.module`"; empty if nothing is known.
    """

    holds: Callable[[Any], bool]
    expected: str
    hint: Callable[[Any], str] = lambda value: ""

    def check(self, name: str, value: object) -> None:
        """Raise SpmdirError unless `value`, given for argument `name`, is of this kind."""
        if not self.holds(value):
            raise wrong_argument(name, value, f"{self.expected}{self.hint(value)}")

    @property
    def optional(self) -> Kind:
        """Return this kind, or None."""
        return Kind(lambda value: value is None or self.holds(value), f"{self.expected}, or None", self.hint)


def instance(*types: type, expected: str) -> Kind:
    """Return the kind of the instances of `types`."""
    return Kind(lambda value: isinstance(value, types), expected)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value)) and "\0" not in str(os.fspath(value))


def is_amount(value: object) -> bool:
    """Return whether `value` is a finite number from 0 on."""
    number: Any = value
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= number <= sys.float_info.max


def keyed(expected: str) -> Kind:
    """Return the kind of mappings from names."""
    return Kind(_is_named, expected)


def many(kind: Kind, expected: str) -> Kind:
    """Return the kind of lists and tuples of `kind`."""
    return Kind(lambda value: isinstance(value, (list, tuple)) and all(map(kind.holds, value)), expected)


TEXT = instance(str, expected="a text")
FLAG = instance(bool, expected="True or False")
INTEGER = instance(Integral, expected="an integer")
COUNT = Kind(lambda value: INTEGER.holds(value) and 0 <= value <= 10**6, "an integer from 0 to 1000000")
SEED = Kind(
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= value < 2**64,
    "an integer of 64 bits",
)
AMOUNT = Kind(is_amount, "a finite number from 0 on")
CALLABLE = Kind(callable, "a function")
PATH = Kind(_is_path, "the path of a file")
DIRECTORY = Kind(_is_path, "the path of a directory").optional
SIZES = instance(Mapping, expected="a dict of numbers by name, as in {'s0': 8}").optional
EXAMPLES = Kind(
    lambda value: isinstance(value, (list, tuple)),
    "a tuple of positional arguments",
    lambda value: "; give arguments by name as example_kwargs" if isinstance(value, Mapping) else "",
)
SHARDINGS = instance(Mapping, expected='a dict, as in {"x": "dp: S(0)"}').optional
OUT_SHARDINGS = instance(list, tuple, expected="a list with one entry an output").optional
MISSING_RULE = Kind(lambda value: isinstance(value, str) and value in ("warn", "error"), "'warn' or 'error'")


RENAMED = {"shardings": "plan", "styles": "plan", "clip": "clip_grad_norm", "kwargs": "example_kwargs"}
"""Name that users give to an argument → its name."""


def accepts(**kinds: Kind) -> Callable[[Function], Function]:
    """Let a function raise SpmdirError, before it begins, for a call that it does not take.

    That is a call with an unknown name, without a required argument, or with an argument that is not of its `kinds`. An
    exception in the code of a plug-in becomes a `PluginError` at its line.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            check_call(signature, function.__name__, args, given)
            positional = tuple(signature.parameters)[: len(args)]
            check_kinds(kinds, {**dict(zip(positional, args, strict=False)), **given}, positional)
            try:
                return function(*args, **given)
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
        kinds: name → the kind of the argument.
        arguments: name → value.
        positional: the names of those that are given by position. If a value is of the kind of another one, the
            message has the order.
    """
    for name, value in arguments.items():
        if name in kinds and not kinds[name].holds(value):
            others = [kinds[other] for other in positional if other != name and other in kinds]
            is_misplaced = name in positional and any(other.holds(value) for other in others)
            order = f"; the order of arguments is ({', '.join(positional)})" if is_misplaced else ""
            raise wrong_argument(name, value, f"{kinds[name].expected}{kinds[name].hint(value)}{order}")


def check_call(signature: inspect.Signature, function: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Raise SpmdirError if a function of `signature` cannot be called so."""
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        names = list(signature.parameters)
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise unknown_name(f"{function} has no argument", unknown, names) from None
        raise SpmdirError(f"{function} cannot be called so: {error}; its arguments are ({', '.join(names)})") from None


def unknown_name(what: str, name: str, known: Sequence[str], others: Sequence[str] = ()) -> SpmdirError:
    """Return the error of an argument or option `name` that is not one of `known`.

    Args:
        others: further names that the caller may mean.
    """
    renamed = RENAMED.get(name)
    hint = f"; give it as '{renamed}'" if renamed in (*known, *others) else did_you_mean(name, known)
    return SpmdirError(f"{what} '{name}'; expected {', '.join(known)}{hint}")
