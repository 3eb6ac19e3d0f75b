"""The buffers that the emitted code of a step allocates, in order."""

from __future__ import annotations

import functools
import math

import attrs

from spmdir.core.intervals import common, length
from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.conditions import refinement
from spmdir.reshard.cost import local_bytes, local_shape, sends_anything, step_sizes
from spmdir.reshard.exchange import grid_of
from spmdir.reshard.steps import Step

ARRIVES = "received"
"""The buffer that a transfer writes. The wait allocates the buffers after the last one of this name."""


Sized = tuple[str, float]
"""The name of a buffer, from `spmdir.reshard.collective_spec.BUFFERS`, and its bytes."""


def step_buffers(step: Step, meta: TensorMeta, mesh: Mesh) -> list[Sized]:
    """Return the buffers that `step` allocates on the rank with the largest shard, in order. The last is the result.

    The list is empty if the result shares the operand's memory.

    Args:
        meta: the global shape and the element type of the tensor. The local tensor is contiguous.
    """
    # In a group of one rank, a step that names axes returns its operand.
    if mesh.group_size(step.axes) == 1 and step.spec.check is None:
        return []
    source = local_bytes(step.source, meta.shape, meta.dtype.itemsize, mesh)
    target = local_bytes(step.target, meta.shape, meta.dtype.itemsize, mesh)
    # Chunks of a leading dimension are contiguous, so they are sent and received as they are.
    is_omitted = {
        "packed": _is_leading(step.to_dim if step.to_dim is not None else step.dim, step, meta, mesh),
        "unpacked": _is_leading(step.dim, step, meta, mesh),
    }
    sizes = {"packed": source, "sent": source, "received": target, "unpacked": target, "result": target}
    if _is_exchange(step):  # elements that stay on their rank are not sent
        exchanged = step_sizes(step, meta.shape, meta.dtype.itemsize, mesh)
        received = _busiest_receiver(step, meta.shape, mesh).received * meta.dtype.itemsize
        sizes |= {"sent": exchanged.moved, "received": received, "joined": exchanged.combined * target}
        # One partial value is joined in the result. If each rank sends a whole one, nothing is joined.
        is_omitted["joined"] = exchanged.combined in (1, exchanged.group)
    return [(name, sizes[name]) for name in step.spec.buffers if not is_omitted.get(name)]


def copies_strided_operand(step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether `step` copies an operand that is not contiguous first.

    It does if it sends the operand without packing it. A step that sends nothing does not.
    """
    has_packing = not {"packed", "sent"}.isdisjoint(step.spec.buffers)
    is_packed = has_packing and not _is_leading(step.to_dim if step.to_dim is not None else step.dim, step, meta, mesh)
    return sends_anything(step, meta.shape, mesh) and not is_packed


def keeps_operand(step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether the operand of `step` is live until the result is written: chunks of it stay on the rank."""
    return (
        _is_exchange(step)
        and mesh.group_size(step.axes) > 1
        and _busiest_receiver(step, meta.shape, mesh).keeps_operand
    )


def _is_exchange(step: Step) -> bool:
    """Return whether `step` concatenates or reduces elements from several ranks, as an exchange does."""
    return "joined" in step.spec.buffers


@attrs.frozen(order=True)
class _Receiver:
    """A rank of an exchange, ordered by the elements that it has in memory when all have arrived.

    Attributes:
        live: elements in memory: the received ones, and the operand if it is still needed.
        received: elements that the rank receives.
        keeps_operand: whether a part of the operand stays on the rank, so that it is live until all parts are joined.
    """

    live: int = 0
    received: int = 0
    keeps_operand: bool = False


@functools.lru_cache(maxsize=4096)
def _busiest_receiver(step: Step, shape: tuple[int, ...], mesh: Mesh) -> _Receiver:
    """Return the rank of an exchange that has the most elements in memory when all have arrived.

    It has the received elements, and its operand if a part of that stays on the rank: the source and target shard of
    the rank have elements in common.
    """
    assert step.spec.loads is not None  # an exchange
    received_numels: dict[int, int] = {}  # rank → the elements that it receives, in the only round
    for (_, receiver), numel in step.spec.loads(step.source, step.target, mesh, shape)[0].items():
        received_numels[receiver] = received_numels.get(receiver, 0) + numel
    fine = refinement(mesh, step.source, step.target)
    source, target = step.source.refined(fine), step.target.refined(fine)
    busiest = _Receiver()
    for rank, received in received_numels.items():
        source_grid, target_grid = grid_of(source, shape, fine, rank), grid_of(target, shape, fine, rank)
        keeps_operand = all(map(common, source_grid, target_grid))
        operand_numel = math.prod(map(length, source_grid)) if keeps_operand else 0
        busiest = max(busiest, _Receiver(received + operand_numel, received, keeps_operand))
    return busiest


def _is_leading(dim: int | None, step: Step, meta: TensorMeta, mesh: Mesh) -> bool:
    """Return whether chunks along `dim` are contiguous: no dimension before it has several elements.

    False if `dim` is None.
    """
    return dim is not None and math.prod(local_shape(step.source, meta.shape, mesh)[:dim]) == 1
