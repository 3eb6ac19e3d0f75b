"""The cost of each collective of a program. Local steps, such as slice, are in compute.py."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp

from spmdir.analysis.sent_messages import SentMessages
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.report.op_costs import MEASURED, OpCost
from spmdir.report.op_sums import Share


def collective_costs(function: FuncOp, messages: SentMessages) -> Iterator[OpCost]:
    """Yield the cost of each collective of a function that sends bytes."""
    for op in function.body.block.ops:
        message = messages.of(op)
        if message is not None:
            terms = message.terms
            share = Share(1, terms.wire_bytes, terms.seconds, (terms.measured or messages.topology.name,))
            bound = MEASURED if terms.measured else "network"
            yield OpCost(text_name(op.results[0]), message.kind, location_of(op), share, 0.0, 0.0, bound, message.axes)
