"""All-reduces that write into their operand, for programs that run without a compiler.

The functional `all_reduce` copies its operand first. If the operand is new memory without other users, such as the
packed buffer of a bucket, the copy is not needed:

    bucket = cat(gradients); all_reduce(bucket)   →   bucket = cat(gradients); all_reduce_(bucket)

The simulator and Inductor need the functional program, so this change is made just before a program runs.
"""

from __future__ import annotations

from torch import fx

from spmdir.lowering.ranges import aten
from spmdir.lowering.site import functional

IN_PLACE = functional.all_reduce_.default

_NEW = frozenset({aten.cat.default, aten.mm.default, aten.bmm.default, aten.addmm.default, aten.sum.dim_IntList})
"""Ops whose result is always new memory."""


def reduce_in_place(program: fx.GraphModule) -> None:
    """Let an all-reduce write into its operand, if the operand is new memory that only the all-reduce uses.

    The graph changes in place. The caller generates the code.
    """
    for node in program.graph.find_nodes(op="call_function", target=functional.all_reduce.default):
        if _is_unshared(node.args[0]):
            node.target = IN_PLACE


def _is_unshared(value: object) -> bool:
    """Return whether a value is new memory with a single user."""
    if not isinstance(value, fx.Node) or len(value.users) != 1:
        return False
    if value.target is aten.contiguous.default:  # may return its operand
        return _is_unshared(value.args[0])
    if value.target is aten.einsum.default:  # of one operand, it may return a view
        return len(value.args[1]) > 1  # type: ignore[arg-type]
    return value.target in _NEW
