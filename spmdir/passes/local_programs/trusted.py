"""Which local functions need no type check: those that localize made or that have passed it, and no one changed since.

What is trusted is an object in memory, not a text: a function that is read or copied is checked.
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
    """Whether `function` was given to `trust` as it is now."""
    return function.__dict__.get("_trusted") == _content(function)


def _content(function: FuncOp) -> list[Any]:
    """All that a function computes by: the objects themselves, so that comparing them is quick."""
    arguments = [argument.type for argument in function.args]
    return [mesh_of(function), arguments, _parts(function), *map(_parts, function.body.block.ops)]


def _parts(op: Operation) -> tuple[Any, ...]:
    return op, tuple(op.operands), tuple(op.result_types), dict(op.properties)
