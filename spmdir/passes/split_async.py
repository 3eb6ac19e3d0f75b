"""split-async: replace each collective and copy by a start and a wait. `reorder` then moves ops between them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_programs.globalize import units_of
from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import pending
from spmdir.dialects.collectives import Collective, WaitOp, collective_class
from spmdir.dialects.context import IRContext
from spmdir.dialects.host_ops import STARTS, HostCopyOp
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.row_exchanges import EXCHANGE_STARTS, ExpertExchangeOp
from spmdir.pipeline.base_passes import LocalPass

Splittable = Collective | HostCopyOp | ExpertExchangeOp
"""An op that may have a start and a wait."""


@dataclass(frozen=True)
class SplitAsyncPass(LocalPass):
    """Replaces each collective, exchange of rows and host copy by a start directly followed by a wait."""

    name = "split-async"

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Split each collective, exchange and host copy that has an asynchronous form.

        Other ops of local forms are not changed: verify-spmd compares them with the output of localize.
        """
        names = Names(function.body.block)
        for form, ops in list(units_of(function.body.block)):
            for op in ops:
                if isinstance(op, Splittable if form is None else ExpertExchangeOp):
                    start_class = _start_class(op)
                    if start_class is not None:
                        _split(op, start_class, names)


def _start_class(op: Splittable) -> type[Splittable] | None:
    """Return the class of the op that starts this collective, exchange or copy; None if it cannot be split."""
    if isinstance(op, HostCopyOp):
        return STARTS.get(type(op))
    if isinstance(op, ExpertExchangeOp):
        return EXCHANGE_STARTS.get(type(op))
    return collective_class(op.spec.name, starts=True) if op.spec.may_be_async and not op.IS_START else None


def _split(op: Splittable, start_class: type[Splittable], names: Names) -> None:
    """Replace an op by a start of the class `start_class` and a wait."""
    types = [pending(result.type) for result in op.results]
    attributes = op.attributes if isinstance(op, ExpertExchangeOp) else {}  # the note of a local form
    start = start_class.create(
        operands=op.operands,
        result_types=types,
        properties=dict(op.properties),
        attributes=attributes,
        location=op.location,
    )
    wait_properties = {name: value for name, value in op.properties.items() if name != "arguments"}
    wait = WaitOp.create(
        operands=start.results, result_types=op.result_types, properties=wait_properties, location=op.location
    )
    Rewriter.insert_op([start, wait], InsertPoint.before(op))
    suffix = "start" if isinstance(op, (Collective, ExpertExchangeOp)) else start_class.name.removeprefix("spmd.")
    for result, pending_result, waited_result in zip(op.results, start.results, wait.results, strict=True):
        names.assign_name(pending_result, result, suffix)
        result.replace_all_uses_with(waited_result)
        copy_name(waited_result, result)
    Rewriter.erase_op(op)
