"""The local types of a value, in a program that may be broken."""

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
    """Return the mesh of the module of a scope; None if it is missing or broken."""
    module = document.module(scope)
    try:
        return ir.mesh(module) if module is not None else None
    except (SpmdirError, KeyError):  # KeyError: an op in generic form without the mesh
        return None


def shards_of(value: SSAValue, mesh: Mesh) -> tuple[TensorMeta, list[TensorMeta]] | None:
    """Return the global type and the different local types of a value, the largest first.

    Return None if they are unknown or the sharding is invalid.
    """
    sharding, meta_in_text = sharding_of(value), meta_of(value.type)
    if sharding is None or meta_in_text is None or sharding.open_axes:
        return None
    try:
        sharding.check(mesh, meta_in_text.rank)
        meta = global_type(value, mesh)
        local_types = sharding.local_types(meta, mesh) if meta is not None else ()
    except SpmdirError:  # invalid sharding, or unknown sizes
        return None
    if meta is None or not local_types:
        return None
    return meta, sorted(local_types, key=lambda local_type: -local_type.bytes)
