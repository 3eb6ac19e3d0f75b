"""Names of a user's function that are equal in all processes, and the values that it captures."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from spmdir.core.errors import Location

LITERALS = (bool, int, float, str, type(None))
"""The types of captured values and of arguments that have equal texts in all processes."""

_DIGITS = 8
"""The hexadecimal digits in the name of an op that distinguish functions of one name."""

_PLUGIN = "spmdir_plugin_"
"""The start of the names of modules that `--load-plugin` loads from a file."""


def definition_of(function: Callable[..., Any]) -> Location | None:
    """Return the line that defines a function; None if it is not written in Python."""
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, 1) if code is not None else None


def module_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return (stem, name to load it by) of the module that defines a function.

    For `my/kernels.py`, the stem is `kernels`, whether the file runs as a script, is imported, or is loaded as a
    plug-in. The second is `my.kernels` if the module was imported by name, else the file name `kernels.py`.
    """
    definition, name = definition_of(function), function.__module__ or "builtins"
    if definition is not None and (name == "__main__" or name.startswith(_PLUGIN)):
        file = os.path.basename(definition.file)
        return file.removesuffix(".py"), file
    return name.rpartition(".")[2], name


def op_name(function: Callable[..., Any], shardings: Sequence[Sequence[str]], tensors: Sequence[bool]) -> str:
    """Return the name of the op of a function, the same in all processes, such as `kernels_attention_1a2b3c4d`.

    The digits at the end distinguish functions of one name with different shardings or different captured literals.

    Args:
        shardings: (texts of the shardings of the operands, texts of the shardings of the results).
        tensors: for each argument, whether it is a tensor.
    """
    stem = module_of(function)[0]
    literals = [(name, value) for name, value in captured_values(function).items() if type(value) in LITERALS]
    key = repr((stem, function.__qualname__, shardings, tensors, literals))
    digits = hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
    qualified = f"{stem}_{function.__qualname__.replace('<locals>.', '')}"
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', qualified).strip('_')}_{digits}"


def captured_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Return name → value of the variables that a function captures from enclosing functions, and of its defaults."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    values: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    defaults = getattr(function, "__defaults__", None) or ()
    names = code.co_varnames[: code.co_argcount]
    values |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return values | (getattr(function, "__kwdefaults__", None) or {})


def read_globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return name → value of the global variables that the code of a function reads."""
    code, values = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return {name: values[name] for name in code.co_names if name in values} if code is not None else {}


def is_same_function(left: Callable[..., Any], right: Callable[..., Any]) -> bool:
    """Return whether two functions have equal code and capture the same objects or equal literals."""
    if left is right:
        return True
    code = getattr(left, "__code__", None)
    if code is None or code != getattr(right, "__code__", None):
        return False
    left_values, right_values = captured_values(left), captured_values(right)
    return left_values.keys() == right_values.keys() and all(
        value is right_values[name] or (type(value) in LITERALS and value == right_values[name])
        for name, value in left_values.items()
    )
