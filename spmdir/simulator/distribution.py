"""Local tensors of all ranks from a global tensor, and the global tensor from these.

Both follow the placements' reference semantics, axis by axis: shards in nesting order, then partial values and
other layouts of plug-ins, then copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spmdir.core.declared_fields import place
from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement, own_type, take
from spmdir.core.placement.holding import holding
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.plugin_lines import failing_line, first_line
from spmdir.reshard.conditions import refinement
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

_MOST_RANKS = 64
"""So many times noise may be added to an element, or taken from it, before it can become infinite."""


def random_like(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a source of noise for `Placement.distribute`: of each element's size, of the type and device of the data.

    Sums with noise then round as the element does, however large the others are, and stay finite over up to
    `_MOST_RANKS` ranks. Zeros, infinities and NaN get noise of the size of the smallest other element. Truth values
    get noise around zero, whose sign decides.
    """

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bool:
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return torch.randint(0, 4, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        size = tensor.detach().to("cpu", wide).abs()
        usual = size.isfinite() & (size > 0)
        size = size.where(usual, size[usual].min() if usual.any() else 1.0)
        room = (torch.finfo(tensor.dtype).max - size).clamp(min=0) / _MOST_RANKS
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).clamp(-2, 2) / 2
        return (values * size.minimum(room)).to(tensor.device, tensor.dtype)

    return noise


def distribute(
    tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, noise: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Return the local tensor of each rank; `noise` makes partial values that differ from the value.

    Raises:
        SpmdirError: values of this type, or these values, cannot be laid out so.
    """
    dtype = DTYPES_OF_TORCH.get(tensor.dtype)
    if dtype is None:
        known = ", ".join(map(str, DTYPES_OF_TORCH))
        raise UnsupportedError(f"values of type {tensor.dtype} have no element type in the IR; expected one of {known}")
    for axis, placement in sharding.entries:
        if not placement.supports(dtype):
            raise UnsupportedError(
                f"values of type {dtype} cannot be laid out as {placement} on axis '{axis}'; expected a placement that "
                f"supports {dtype}, such as replication: leave the axis out"
            )
    mesh = refinement(mesh, sharding)
    layers = _layers(sharding, mesh)
    found: dict[tuple[int, ...], torch.Tensor] = {(): tensor}
    for axes, placement in layers:
        count = mesh.group_size(axes)
        found = {
            (*where, index): shard
            for where, outer in found.items()
            for index, shard in enumerate(_distributed(placement, outer, count, noise))
        }
    return [found[_place(layers, mesh, rank)] for rank in range(mesh.world_size)]


def local_tensor(tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> torch.Tensor:
    """Return the local tensor of one rank: a view where its axes only shard.

    Partial values are made without noise, so that every rank computes its own alone.
    """
    mesh = refinement(mesh, sharding)
    for axes, placement in _layers(sharding, mesh):
        count, index = mesh.group_size(axes), mesh.index(rank, axes)
        if isinstance(placement, ShardPlacement):
            tensor = take(tensor, placement.dim, placement.ranges(tensor.shape[placement.dim], count, index))
        elif placement.trait != "replicated":
            tensor = _distributed(placement, tensor, count, torch.zeros_like)[index]
    return tensor


def held_ranges(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[Ranges, ...]:
    """Return the positions of each dimension that `rank` holds, in local order; padding follows them.

    Raises:
        UnsupportedError: what ranks hold are not elements of the tensor, as partial values.
    """
    held = holding(sharding, shape, mesh, rank)
    for axes, placement in held.mixed:
        raise UnsupportedError(
            f"what ranks hold by {placement} on axis '{axes[0]}' are not elements of the tensor, so no rank can "
            "save its part; lay the tensor out by shards, or replicate it"
        )
    return held.ranges


def collect(
    shards: Sequence[torch.Tensor],
    sharding: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the tensor of global `shape` from the local ones of all ranks.

    Args:
        dtype: its element type, which ranks may hold another one of; that of the shards if None.

    Raises:
        SpmdirError: copies differ between ranks beyond rounding.
    """
    mesh = refinement(mesh, sharding)
    layers = _layers(sharding, mesh)
    found = {_place(layers, mesh, rank): shard for rank, shard in enumerate(shards)}
    kind = DTYPES_OF_TORCH[dtype or shards[0].dtype]
    types = _outer_types(TensorMeta(tuple(shape), kind), layers, mesh)
    while layers:
        axes, placement = layers.pop()
        groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for where in sorted(found):
            groups.setdefault(where[:-1], []).append(found[where])
        for group in groups.values():
            _check_copies(group, axes[0], placement)
        found = {
            where: _declared(placement, placement.collect_as, group, types[where].shape, types[where].dtype)
            for where, group in groups.items()
        }
    return found[()]


Layers = list[tuple[tuple[str, ...], Placement]]
"""Axes that lay a tensor out as one, with their placement, in the order of distribution."""


def _layers(sharding: Sharding, mesh: Mesh) -> Layers:
    """Return all axes of the mesh."""
    placed = dict(sharding.entries)
    return [*sharding.layers, *(((axis,), sharding[axis]) for axis in mesh.axis_names if axis not in placed)]


def _place(layers: Layers, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Return the index of `rank` along each layer."""
    return tuple(mesh.index(rank, axes) for axes, _ in layers)


def _outer_types(meta: TensorMeta, layers: Layers, mesh: Mesh) -> dict[tuple[int, ...], TensorMeta]:
    """Return (indices along the outer layers, as many as there are) → the type that the next one lays out there."""
    types: dict[tuple[int, ...], TensorMeta] = {(): meta}
    outer: list[tuple[int, ...]] = [()]
    for axes, placement in layers:
        count = mesh.group_size(axes)
        inner: dict[tuple[int, ...], TensorMeta] = {
            (*at, index): TensorMeta(*own_type(placement, types[at].shape, types[at].dtype, count, index))
            for at in outer
            for index in range(count)
        }
        types.update(inner)
        outer = [*inner]
    return types


def _distributed(placement: Placement, tensor: torch.Tensor, count: int, noise: Callable[..., Any]) -> Sequence[Any]:
    """Return what `distribute` of a placement gives, once it is a tensor for each of `count` ranks."""
    found = _declared(placement, placement.distribute, tensor, count, noise)
    if isinstance(found, (list, tuple)) and all(isinstance(shard, torch.Tensor) for shard in found):
        if len(found) == count:
            return found
        given = f"{len(found)} tensors"
    else:
        given = shown(found)
    raise SpmdirError(
        f"`distribute` of {placement} gives {given}; expected a list of {count} tensors, one a rank",
        place(placement.distribute),
    )


def _declared(placement: Placement, method: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a method of a placement gives."""
    try:
        return method(*arguments)
    except SpmdirError:
        raise
    except (Exception, SystemExit) as error:
        # Code of plug-ins raises whatever it likes; for the user it is one thing: this declaration is wrong.
        name = method.__name__.removesuffix("_as")
        message = f"`{name}` of {placement} fails: {type(error).__name__}: {first_line(error)}"
        raise SpmdirError(message, failing_line([placement], error)) from error


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
