"""Types and forms of the arguments of public functions, declared beside them and checked on entry."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import attrs

from spmdir.core.errors import wrong_argument

Function = TypeVar("Function", bound=Callable[..., Any])


@attrs.frozen
class Kind:
    """A kind of argument.

    Attributes:
        holds: whether a value is of the kind.
        expected: what the error message expects.
    """

    holds: Callable[[Any], bool]
    expected: str

    def check(self, name: str, value: object) -> None:
        """Raise SpmdirError unless `value`, given for argument `name`, is of this kind."""
        if not self.holds(value):
            raise wrong_argument(name, value, self.expected)

    @property
    def optional(self) -> Kind:
        """Return this kind, or None."""
        return Kind(lambda value: value is None or self.holds(value), f"{self.expected}, or None")


def instance(*types: type, expected: str) -> Kind:
    """Return the kind of the instances of `types`."""
    return Kind(lambda value: isinstance(value, types), expected)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value)) and "\0" not in str(os.fspath(value))


def is_amount(value: object) -> bool:
    """Return whether `value` is a finite number from 0 on."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


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
SHARDINGS = instance(Mapping, expected='a dict, as in {"x": "dp: S(0)"}').optional
OUT_SHARDINGS = instance(list, tuple, expected="a list with one entry an output").optional
MISSING_RULE = Kind(lambda value: isinstance(value, str) and value in ("warn", "error"), "'warn' or 'error'")


def accepts(**kinds: Kind) -> Callable[[Function], Function]:
    """Let a function raise SpmdirError, before it begins, for arguments that are not of their `kinds`."""

    def decorate(function: Function) -> Function:
        names = tuple(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name, value in (*zip(names, args, strict=False), *given.items()):
                if name in kinds:
                    kinds[name].check(name, value)
            return function(*args, **given)

        return checked  # type: ignore[return-value]

    return decorate
