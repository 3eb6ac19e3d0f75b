"""Sub-axes in a module that was read: adjacent ones of one placement are named as one, so that text is canonical."""

from __future__ import annotations

import re
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import ArgumentsAttr, ShardingAttr, ShardingsAttr, sharding_attr, shardings_attr
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.verification import mesh_of

SUB_AXIS = re.compile(r"\w\(\d+\)\d")
"""What every text with a sub-axis has in it."""


def merge_axes(module: ModuleOp) -> None:
    """Write each sharding and each list of axes of `module` in its canonical form; what is malformed is left alone."""
    try:
        mesh = mesh_of(module)
    except (SpmdirError, ValueError):
        return
    if mesh is None:
        return
    for op in module.walk():
        if isinstance(op, ValueOp):
            _merge_op(op, mesh)
        elif isinstance(op, FuncOp):
            for which in ("arg_attrs", "res_attrs"):
                given = op.properties.get(which)
                if isinstance(given, ArrayAttr):
                    op.properties[which] = ArrayAttr([_merged_attrs(entry, mesh) for entry in given.data])


def _merge_op(op: ValueOp, mesh: Mesh) -> None:
    for name in ("sharding", "needs"):
        given = op.properties.get(name)
        if isinstance(given, ShardingsAttr):
            op.properties[name] = shardings_attr(tuple(s.merged(mesh) if s else None for s in given.data))
    axes: Any = op.argument.get("axes")
    if op.name.startswith("spmd.") and isinstance(axes, tuple) and all(isinstance(axis, str) for axis in axes):
        op.properties["arguments"] = ArgumentsAttr(tuple(sorted({**op.argument, "axes": mesh.merge(axes)}.items())))


def _merged_attrs(entry: Any, mesh: Mesh) -> Any:
    sharding = entry.data.get("spmd.sharding") if isinstance(entry, DictionaryAttr) else None
    if not isinstance(sharding, ShardingAttr):
        return entry
    return DictionaryAttr({**entry.data, "spmd.sharding": sharding_attr(sharding.data.merged(mesh))})
