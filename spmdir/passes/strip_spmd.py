"""strip-spmd: convert a sharded program back to its single-device program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.machine_attribute import CERTIFICATE, OBJECTIVE, TOPOLOGY
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.names import copy_name
from spmdir.dialects.size_ops import SizeOp
from spmdir.dialects.stage import PASSES_RUN, STAGE
from spmdir.dialects.value_op import DECIDED, ValueOp
from spmdir.pipeline.base_passes import global_functions
from spmdir.pipeline.recorded_options import NOTE as DECIDED_BY


@dataclass(frozen=True)
class StripSpmdPass(ModulePass):
    """Removes the mesh, all shardings and all spmd ops. The result is the single-device program."""

    name = "strip-spmd"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Strip all functions of a global program, also those of outlined layers, then erase the mesh.

        Raises:
            UnsupportedError: a function has the types of one rank, or calls a function that is not a layer; located.
        """
        for function in global_functions(op, self.name, with_layers=True):
            for name in (GIVEN, DECIDED_BY, STAGE, PASSES_RUN, TOPOLOGY, OBJECTIVE, CERTIFICATE):
                function.attributes.pop(name, None)
            for child in list(function.body.block.ops):
                _strip(child)
            function.arg_attrs = _without_shardings(function.arg_attrs)
            function.res_attrs = _without_shardings(function.res_attrs)
            for child in function.body.block.ops:
                if isinstance(child, SizeOp):
                    child.update_axes()
        for mesh in [child for child in op.body.block.ops if isinstance(child, MeshOp)]:
            Rewriter.erase_op(mesh)


def _strip(op: Operation) -> None:
    """Replace a spmd op by its operands. Remove the shardings and `spmd.` attributes from any other op."""
    if isinstance(op, SpmdOp):
        _replace(op, list(op.operands))
    elif isinstance(op, ValueOp):
        for name in DECIDED:
            op.properties.pop(name, None)
        for name in [name for name in op.attributes if name.startswith("spmd.")]:
            del op.attributes[name]


def _replace(op: Operation, values: list[SSAValue]) -> None:
    """Replace the results of an op by `values`, and erase it. A value without a name gets the name of the result."""
    for result, value in zip(op.results, values, strict=True):
        if isinstance(value.owner, ValueOp) and value.name_hint is None:
            copy_name(value, result)
        result.replace_all_uses_with(value)
    Rewriter.erase_op(op)


def _without_shardings(attrs: ArrayAttr[DictionaryAttr] | None) -> ArrayAttr[DictionaryAttr] | None:
    """Return the attributes of arguments or results without those of shardings."""
    if attrs is None:
        return None
    removed = ("spmd.sharding", "spmd.like")
    return ArrayAttr(
        [DictionaryAttr({name: value for name, value in entry.data.items() if name not in removed}) for entry in attrs]
    )
