"""What every rank holds of a global tensor, and the global tensor from what the ranks hold.

Both follow the placements' reference semantics, axis by axis: shards in nesting order, then pending reductions,
then copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spmdir.errors import SpmdirError, UnsupportedError
from spmdir.mesh import Mesh
from spmdir.placement import Placement, R, Shard, chunk
from spmdir.planner.steps import refinement
from spmdir.sharding import Sharding

_ORDER = {"shard": 0, "partial": 1, "replicated": 2}


def random_like(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """A source of noise for `Placement.distribute`: values of the size of the data, of its type and device.

    Truth values get noise around zero, whose sign decides.
    """

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bool:
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return torch.randint(0, 4, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        size = tensor.detach().abs().to(torch.float64)
        size = size[torch.isfinite(size)]
        scale = float(size.max()) if size.numel() and size.max() > 0 else 1.0
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).clamp(-2, 2) * (scale / 2)
        return values.to(tensor.device, tensor.dtype)

    return noise


def distribute(
    tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, noise: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """What each rank holds of `tensor`; `noise` hides the value of pending reductions.

    Raises:
        UnsupportedError: a pending reduction that values of this type cannot be addends of.
    """
    if sharding.partial and tensor.dtype == torch.bool and any(op not in ("any", "all") for _, op in sharding.partial):
        raise UnsupportedError(f"truth values cannot be laid out as <{sharding}>; expected P(any) or P(all)")
    mesh = refinement(mesh, sharding)
    held: dict[tuple[tuple[str, int], ...], torch.Tensor] = {(): tensor}
    for axis, placement in _axes(sharding, mesh):
        held = {
            (*where, (axis, index)): piece
            for where, whole in held.items()
            for index, piece in enumerate(placement.distribute(whole, mesh.sizes[axis], noise))
        }
    by_point = {frozenset(where): piece for where, piece in held.items()}
    return [by_point[frozenset(mesh.coordinate(rank).items())] for rank in range(mesh.world_size)]


def held_piece(tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> torch.Tensor:
    """What `rank` holds of `tensor`, alone among the ranks: a view where its axes only divide.

    A pending reduction is laid out without noise, so that every rank finds its addend for itself.
    """
    mesh = refinement(mesh, sharding)
    coordinate = mesh.coordinate(rank)
    for axis, placement in _axes(sharding, mesh):
        if isinstance(placement, Shard):
            offset, length = chunk(tensor.shape[placement.dim], mesh.sizes[axis], coordinate[axis])
            tensor = tensor.narrow(placement.dim, offset, length)
        elif placement != R:
            tensor = placement.distribute(tensor, mesh.sizes[axis], torch.zeros_like)[coordinate[axis]]
    return tensor


def collect(pieces: Sequence[torch.Tensor], sharding: Sharding, mesh: Mesh) -> torch.Tensor:
    """The global tensor that the ranks hold as `sharding`.

    Raises:
        SpmdirError: ranks that hold copies disagree beyond rounding.
    """
    mesh = refinement(mesh, sharding)
    axes = _axes(sharding, mesh)
    names = [axis for axis, _ in axes]
    held = {tuple(mesh.coordinate(rank)[axis] for axis in names): piece for rank, piece in enumerate(pieces)}
    while axes:
        axis, placement = axes.pop()
        groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for where in sorted(held):
            groups.setdefault(where[:-1], []).append(held[where])
        for group in groups.values():
            _check_copies(group, axis, placement)
        held = {where: placement.collect(group) for where, group in groups.items()}
    return held[()]


def _axes(sharding: Sharding, mesh: Mesh) -> list[tuple[str, Placement]]:
    """Every axis of the mesh with its placement, in the order of distribution."""
    nested = dict(sharding.entries)
    names = [*nested, *(axis for axis in mesh.axis_names if axis not in nested)]
    return sorted(((axis, sharding[axis]) for axis in names), key=lambda entry: _ORDER.get(entry[1].trait, 0))


def _check_copies(group: Sequence[torch.Tensor], axis: str, placement: Placement) -> None:
    if placement.trait != "replicated":
        return
    for other in group[1:]:
        if other.shape != group[0].shape or other.dtype != group[0].dtype or not _same(group[0], other):
            raise SpmdirError(
                f"ranks disagree along axis '{axis}' on a value that is replicated there: "
                f"{_summary(group[0])} against {_summary(other)}; the program is wrong, or an op is not deterministic"
            )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.equal(a, b) or not a.numel():
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    limit = 64 * torch.finfo(a.dtype).eps
    finite = a.abs()[torch.isfinite(a)]
    return torch.allclose(a, b, limit, limit * float(finite.max()) if finite.numel() else 0.0, equal_nan=True)


def _summary(tensor: torch.Tensor) -> str:
    values = ", ".join(f"{value}" for value in tensor.flatten()[:3].tolist())
    return f"{list(tensor.shape)} [{values}{', …' if tensor.numel() > 3 else ''}]"
