"""The memory that a step of a reshard allocates, one buffer after the other, as it is emitted."""

from __future__ import annotations

import functools
import math

from spmdir.core.intervals import common, length
from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.conditions import refinement
from spmdir.reshard.cost import local_bytes, local_shape, sends_anything, step_sizes
from spmdir.reshard.exchange import grid_of
from spmdir.reshard.steps import Step

ARRIVES = "received"
"""The buffers that are written while a step is under way; a wait for it makes those after the last of these."""


Sized = tuple[str, float]
"""A buffer by its name in `spmdir.reshard.collective_spec.BUFFERS`, and its bytes."""


def step_buffers(step: Step, meta: TensorMeta, mesh: Mesh) -> list[Sized]:
    """Return the buffers that `step` allocates on the rank with most, in order, the last being the result.

    There are none if the result shares the operand's memory.

    Args:
        meta: the global shape and the element type of the tensor; a rank has it contiguous.
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
    if _joins(step):  # nothing that stays is sent
        of = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
        received = _arriving(step, meta.shape, mesh)[0] * meta.dtype.itemsize
        sizes |= {"sent": of.moved, "received": received, "joined": of.combined * target}
        leading["joined"] = of.combined in (1, of.group)
    return [(stage, sizes[stage]) for stage in step.spec.buffers if not leading.get(stage)]


def copies_strided(step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether `step` first makes an operand contiguous that is not: it sends, and does not pack it anyway."""
    packs = {"packed", "sent"}.intersection(step.spec.buffers)
    is_packed = packs and not _leads(step.to_dim if step.to_dim is not None else step.dim, step, meta, mesh)
    return sends_anything(step, meta.shape, mesh) and not is_packed


def keeps_operand(step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether the operand of `step` is live until the result is made: chunks of it that stay are views of it."""
    return _joins(step) and mesh.group_size(step.axes) > 1 and _arriving(step, meta.shape, mesh)[1]


def _joins(step: Step) -> bool:
    """Return whether `step` joins what several ranks sent, of which each sends what the rank lacks."""
    return "joined" in step.spec.buffers


@functools.lru_cache(maxsize=4096)
def _arriving(step: Step, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, bool]:
    """Return the elements that an exchange gives the rank that holds most as it joins them, and whether this rank
    holds its operand beside them."""
    assert step.spec.loads is not None  # an exchange
    received: dict[int, int] = {}
    for (_, receiver), numel in step.spec.loads(step.source, step.target, mesh, shape)[0].items():
        received[receiver] = received.get(receiver, 0) + numel
    fine = refinement(mesh, step.source, step.target)
    source, target = step.source.refined(fine), step.target.refined(fine)
    most = (0, 0, False)
    for rank, numel in received.items():
        own = grid_of(source, shape, fine, rank)
        keeps = all(map(common, own, grid_of(target, shape, fine, rank)))
        most = max(most, (numel + math.prod(map(length, own)) * keeps, numel, keeps))
    return most[1:]


def _leads(dim: int | None, step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether chunks along `dim` are contiguous: no dimension before it has several elements."""
    return dim is not None and math.prod(local_shape(step.source, meta.shape, mesh)[:dim]) == 1
