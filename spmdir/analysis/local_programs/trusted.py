"""Local functions that need no type check: localize made them or they passed it, and they are unchanged since.

This is a cache of the type check: a function that is not in it is checked, with the same result.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.dialects.verification import mesh_of

_CHECKED: WeakKeyDictionary[FuncOp, list[Any]] = WeakKeyDictionary()
"""Function → its content when it was found to be well typed."""


def trust(function: FuncOp) -> None:
    """Let `function`, as it is now, be emitted without a type check."""
    _CHECKED[function] = _content(function)


def is_trusted(function: FuncOp) -> bool:
    """Return whether `function` is unchanged since it was passed to `trust`."""
    return _CHECKED.get(function) == _content(function)


def _content(function: FuncOp) -> list[Any]:
    """Return all that determines what a function computes, as the objects themselves: comparing them is quick."""
    arguments = [argument.type for argument in function.args]
    return [mesh_of(function), arguments, _parts(function), *map(_parts, function.body.block.ops)]


def _parts(op: Operation) -> tuple[Any, ...]:
    return op, tuple(op.operands), tuple(op.result_types), dict(op.properties)
