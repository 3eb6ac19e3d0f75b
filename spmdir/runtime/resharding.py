"""A program that only changes the layout of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import sharding_attr, type_of
from spmdir.dialects.mesh_op import MeshOp


@attrs.frozen
class LayoutChange:
    """A tensor, and its sharding before and after a reshard."""

    meta: TensorMeta
    source: Sharding
    target: Sharding


def build_reshard_program(name: str, changes: Sequence[LayoutChange], mesh: Mesh) -> ModuleOp:
    """Return a program with one argument and one result for each of `changes`, in the function `name`."""
    types = [type_of(change.meta) for change in changes]
    block = Block(arg_types=types)
    block.add_op(ReturnOp(*block.args))
    source_attrs = ArrayAttr([_sharding_dict(change.source) for change in changes])
    target_attrs = ArrayAttr([_sharding_dict(change.target) for change in changes])
    function = FuncOp(name, (types, types), Region(block), arg_attrs=source_attrs, res_attrs=target_attrs)
    return ModuleOp([MeshOp.build(mesh), function])


def _sharding_dict(sharding: Sharding) -> DictionaryAttr:
    """Return the attributes of an argument or result with this sharding."""
    return DictionaryAttr({"spmd.sharding": sharding_attr(sharding)})
