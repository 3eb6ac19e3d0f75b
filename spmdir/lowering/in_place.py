"""Sums over ranks in the memory of what is summed, for programs that run as they are.

The functional `all_reduce` copies its operand before it sends it. Where the operand is new memory that nothing else
reads, as a bucket that is packed for the message, the copy is needless:

    bucket = cat(gradients); all_reduce(bucket)   →   bucket = cat(gradients); all_reduce_(bucket)

The simulator and Inductor take the functional program, so this is done when a program is made ready to run.
"""

from __future__ import annotations

from torch import fx

from spmdir.lowering.ranges import aten
from spmdir.lowering.site import functional

IN_PLACE = functional.all_reduce_.default

_NEW = frozenset({aten.cat.default, aten.mm.default, aten.bmm.default, aten.addmm.default, aten.sum.dim_IntList})
"""Ops whose result is new memory, whatever their operands are."""


def sum_in_place(program: fx.GraphModule) -> None:
    """Let sums over ranks write into their operands where nothing else reads these; the caller generates the code."""
    for node in program.graph.find_nodes(op="call_function", target=functional.all_reduce.default):
        if _is_new(node.args[0]):
            node.target = IN_PLACE


def _is_new(value: object) -> bool:
    """Return whether a value is new memory, of which the one user is the only one that there is."""
    if not isinstance(value, fx.Node) or len(value.users) != 1:
        return False
    if value.target is aten.contiguous.default:
        return _is_new(value.args[0])
    return value.target in _NEW or (value.target is aten.einsum.default and len(value.args[1]) > 1)  # type: ignore[arg-type]
