"""Local functions that need no type check: localize made them or they passed it, and they are unchanged since.

Trust is in an object in memory, not in a text: a function that is read or copied is checked.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.dialects.verification import mesh_of


def trust(function: FuncOp) -> None:
    """Let `function`, as it is now, be emitted without a type check."""
    object.__setattr__(function, "_trusted", _content(function))


def is_trusted(function: FuncOp) -> bool:
    """Return whether `function` is unchanged since it was passed to `trust`."""
    return function.__dict__.get("_trusted") == _content(function)


def _content(function: FuncOp) -> list[Any]:
    """Return all that determines what a function computes, as the objects themselves: comparing them is quick."""
    arguments = [argument.type for argument in function.args]
    return [mesh_of(function), arguments, _parts(function), *map(_parts, function.body.block.ops)]


def _parts(op: Operation) -> tuple[Any, ...]:
    return op, tuple(op.operands), tuple(op.result_types), dict(op.properties)
