"""The `aten` dialect: one op class, specialised by name on demand.

What an op does to shardings stands in `aten/*.rules`; nothing here knows any op.
"""

from __future__ import annotations

from functools import cache

from xdsl.irdl import irdl_op_definition

from spmdir.dialects.value_op import ValueOp


class AtenOp(ValueOp):
    """A call of a torch op; `aten.add.Tensor` is `torch.ops.aten.add.Tensor`, `default` is left out."""


@cache
def op_class(name: str) -> type[AtenOp]:
    """The op class of a torch op, e.g. `aten.mm`."""
    return irdl_op_definition(type("AtenOp", (AtenOp,), {"name": name, "__doc__": f"A call of {name}."}))
