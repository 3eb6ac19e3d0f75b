"""Join the starts and waits of exchanges of rows, which restores the local forms that `localize` emits."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_programs.globalize import units_of
from spmdir.dialects.collectives import WaitOp
from spmdir.dialects.names import full_name, keep_name
from spmdir.dialects.row_exchanges import EXCHANGE_STARTS, is_exchange_start


def join_exchanges(function: FuncOp) -> None:
    """Replace each pair of a start and a wait of an exchange of rows by one exchange, in place.

    The exchange and the ops after the wait are inserted at the start. Apart from the pending value, these ops use only
    operands that are defined before the start.
    """
    whole = {start: exchange for exchange, start in EXCHANGE_STARTS.items()}
    for _, (wait, *rest) in list(units_of(function.body.block)):
        if not isinstance(wait, WaitOp) or not is_exchange_start(wait.start):
            continue
        start = wait.start
        exchange = whole[type(start)].create(  # type: ignore  # it is a start
            operands=start.operands,
            result_types=wait.result_types,
            properties=start.properties,
            attributes=start.attributes,
            location=start.location,
        )
        for op in rest:
            op.detach()
        Rewriter.insert_op([exchange, *rest], InsertPoint.before(start))
        keep_name(exchange.results[0], full_name(wait.results[0]) or "")
        wait.results[0].replace_all_uses_with(exchange.results[0])
        Rewriter.erase_op(wait)
        Rewriter.erase_op(start)
