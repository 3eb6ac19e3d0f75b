"""A cache of the type check of local functions.

It contains the functions that localize created, or that passed the type check, as long as they are unchanged. All
other functions are checked, so the cache does not change results.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.dialects.sharding_checks import mesh_of

_CHECKED: WeakKeyDictionary[FuncOp, list[Any]] = WeakKeyDictionary()
"""Function → its content when it was known to be well typed."""


def trust(function: FuncOp) -> None:
    """Record the current content of `function` as well typed. It is emitted without a type check."""
    _CHECKED[function] = _content(function)


def is_trusted(function: FuncOp) -> bool:
    """Return whether `function` is unchanged since it was passed to `trust`."""
    return _CHECKED.get(function) == _content(function)


def _content(function: FuncOp) -> list[Any]:
    """Return the objects that determine the results of a function. They are compared by identity where possible."""
    arguments = [argument.type for argument in function.args]
    return [mesh_of(function), arguments, _parts(function), *map(_parts, function.body.block.ops)]


def _parts(op: Operation) -> tuple[Any, ...]:
    """Return the op with its operands, types of results and properties, so that any change of these is found."""
    return op, tuple(op.operands), tuple(op.result_types), dict(op.properties)
