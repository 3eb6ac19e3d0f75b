"""The `spmd` dialect: the list of its ops, attributes and types, and the constant op."""

from __future__ import annotations

from typing import ClassVar

from xdsl.ir import Dialect, Operation
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import (
    ArgumentsAttr,
    HostType,
    PendingType,
    ShapesAttr,
    ShardingAttr,
    ShardingsAttr,
    StructureAttr,
    meta_of,
)
from spmdir.dialects.collectives import WaitOp, collective_ops, find_collective
from spmdir.dialects.halo import HaloOp, HaloReduceOp
from spmdir.dialects.host_ops import OffloadOp, OffloadStartOp, ReloadOp, ReloadStartOp
from spmdir.dialects.mesh_op import MeshAttr, MeshOp
from spmdir.dialects.pipeline_op import PipelineOp, StepAttr
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.ring_ops import RING_CLASSES
from spmdir.dialects.row_exchanges import EXPERT_CLASSES
from spmdir.dialects.shard_index_ops import LocalIndexOp, PositionsOp
from spmdir.dialects.size_ops import SizeOfOp, SizesOp
from spmdir.dialects.size_types import DimsAttr, SizesAttr, SizeType
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.collectives import SHIPPED


@irdl_op_definition
class ConstantOp(ValueOp):
    """`constant value "…"`: a small tensor, equal on all ranks. `value` is its bytes, row-major, in hexadecimal."""

    name = "spmd.constant"
    PARENTHESISED: ClassVar = False
    CLAUSES: ClassVar = (("value", "value"),)
    traits = traits_def(Pure())

    def check(self, mesh: Mesh | None) -> None:
        """Raise VerifyException unless `value` is hexadecimal text with as many bytes as the type has."""
        super().check(mesh)
        meta = meta_of(self.results[0].type)
        value = self.argument.get("value")
        try:
            data = bytes.fromhex(value) if isinstance(value, str) else b""
        except ValueError:
            raise VerifyException(
                f"has the value {value!r}; expected hexadecimal text, two digits for each byte"
            ) from None
        if meta is None or len(data) != meta.bytes:
            raise VerifyException(
                f"has a value of {len(data)} bytes; its type requires {meta.bytes if meta else 0}: correct the value "
                "or the type"
            )


Spmd = Dialect(
    "spmd",
    [
        MeshOp,
        PipelineOp,
        SizesOp,
        SizeOfOp,
        ConstantOp,
        ConstraintOp,
        ReshardOp,
        *collective_ops(SHIPPED),
        WaitOp,
        OffloadOp,
        OffloadStartOp,
        ReloadOp,
        ReloadStartOp,
        HaloOp,
        HaloReduceOp,
        *RING_CLASSES.values(),
        *EXPERT_CLASSES.values(),
        PositionsOp,
        LocalIndexOp,
    ],
    [
        MeshAttr,
        StepAttr,
        ShardingAttr,
        ShardingsAttr,
        ArgumentsAttr,
        StructureAttr,
        ShapesAttr,
        DimsAttr,
        SizeType,
        SizesAttr,
        HostType,
        PendingType,
    ],
)


def find_spmd_op(name: str) -> type[Operation] | None:
    """Return the class of an op of the dialect, or of a plug-in's collective; None if there is no op `name`."""
    return find_collective(name) or next((kind for kind in Spmd.operations if kind.name == name), None)
