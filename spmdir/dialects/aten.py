"""The `aten` dialect: one op class, specialised by name on demand.

What an op does to shardings stands in `aten/*.rules`, and whether a program may name it in `aten/ops.txt`; nothing
here knows any op.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from xdsl.irdl import irdl_op_definition

from spmdir.core.admission import STATISTICS, is_admitted, why_not
from spmdir.core.errors import UnsupportedError
from spmdir.dialects.value_op import ValueOp


class AtenOp(ValueOp):
    """A call of a torch op; `aten.add.Tensor` is `torch.ops.aten.add.Tensor`, `default` is left out."""


class RejectedOp(AtenOp):
    """An op that no program may name."""

    def check_admitted(self) -> None:
        raise UnsupportedError(why_not(self.name) or "")


class StatisticsOp(AtenOp):
    """An op that some calls of write running statistics, of which its schema says nothing."""

    def check_admitted(self) -> None:
        place, switch = STATISTICS[self.name]
        slots = self.call().slots
        given = place < len(slots) and slots[place] is not None
        if given and (switch is None or self.argument.get(switch)):
            how = f" with {switch} = true" if switch else ""
            raise UnsupportedError(
                f"writes its operand 'running_mean'{how}; expected a functional op: leave the running statistics out, "
                "or use aten._native_batch_norm_legit_functional, which gives the new ones"
            )


@cache
def op_class(name: str) -> type[AtenOp]:
    """The op class of a torch op, e.g. `aten.mm`."""
    base = StatisticsOp if name in STATISTICS else AtenOp if is_admitted(name) else RejectedOp
    kind: Any = type("AtenOp", (base,), {"name": name, "__doc__": f"A call of {name}."})
    return irdl_op_definition(kind)
