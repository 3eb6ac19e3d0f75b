"""The memory that a step of a reshard allocates, one buffer after the other, as it is emitted."""

from __future__ import annotations

import math

from spmdir.core.mesh import Mesh
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.cost import local_bytes, local_shape, step_sizes
from spmdir.reshard.steps import Step

BUFFERS: dict[str, tuple[str, ...]] = {
    "slice": ("unpacked",),
    "all_gather": ("received", "unpacked"),
    "reduce_scatter": ("packed", "received"),
    "all_to_all": ("packed", "received", "unpacked"),
    "exchange": ("sent", "received", "joined", "result"),
    "rearrange": ("sent", "result"),
    "two_round_exchange": ("sent", "received", "sent", "received", "result"),
}
"""Kind of step → the buffers that it allocates one after the other, each made of the one before, the last being the
result; `packed` and `unpacked` are copies into and out of the order in which chunks are sent, which a leading dimension
needs none of, `sent` is what leaves the rank, and `joined` are partial values put together of what several ranks sent.
What is not here allocates its result."""


def step_buffers(step: Step, meta: TensorMeta, mesh: Mesh) -> list[float]:
    """Return the bytes of the buffers that `step` allocates on the rank with most, in order, the last being the result.

    It is empty if the result shares the operand's memory.

    Args:
        meta: the global shape and the element type of the tensor.
    """
    if mesh.group_size(step.axes) == 1 and step.spec.check is None:
        return []
    source = local_bytes(step.source, meta.shape, meta.dtype.itemsize, mesh)
    target = local_bytes(step.target, meta.shape, meta.dtype.itemsize, mesh)
    leading = {
        "packed": _leads(step.to_dim if step.to_dim is not None else step.dim, step, meta, mesh),
        "unpacked": _leads(step.dim, step, meta, mesh),
    }
    sizes = {"packed": source, "sent": source, "received": target, "unpacked": target, "result": target}
    if step.kind == "exchange":  # every partial value arrives, and nothing that stays is sent
        of = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
        sizes |= {"sent": of.moved, "received": of.moved, "joined": of.combined * target}
        leading["joined"] = of.combined in (1, of.group)
    stages = BUFFERS.get(step.kind, ("result",))
    return [sizes[stage] for stage in stages if not leading.get(stage)]


def _leads(dim: int | None, step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether chunks along `dim` are contiguous: no dimension before it has several elements."""
    return dim is not None and math.prod(local_shape(step.source, meta.shape, mesh)[:dim]) == 1
