"""What ranks have of a value of a program that may be broken."""

from __future__ import annotations

from xdsl.ir import SSAValue

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import global_type, sharding_of
from spmdir.language_server.document import Document
from spmdir.language_server.scan import NameScope


def mesh_at(document: Document, scope: NameScope) -> Mesh | None:
    """Return the mesh that the module around `scope` declares; None if there is none, or no whole one."""
    module = document.module(scope)
    try:
        return ir.mesh(module) if module is not None else None
    except (SpmdirError, KeyError):  # the latter of the generic form of an op that lacks the mesh
        return None


def shards_of(value: SSAValue, mesh: Mesh) -> tuple[TensorMeta, list[TensorMeta]] | None:
    """Return the global type of a value and the types that ranks have, the largest first; None if they are not known
    or its sharding is wrong."""
    sharding, own = sharding_of(value), meta_of(value.type)
    if sharding is None or own is None or sharding.open_axes:
        return None
    try:
        sharding.check(mesh, own.rank)
        meta = global_type(value, mesh)
        found = sharding.local_types(meta, mesh) if meta is not None else ()
    except SpmdirError:  # also of sizes that are not known yet
        return None
    return (meta, sorted(found, key=lambda one: -one.bytes)) if meta is not None and found else None
