"""Distribute a global tensor to local tensors, and collect it from them.

Both use the reference semantics of the placements, one axis after another: shards in nesting order, then partial values
and plug-in placements, then copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spmdir.core.declared_fields import place
from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import own_type
from spmdir.core.placement.rank_elements import rank_elements
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement, take
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.plugin_lines import failing_line, first_line
from spmdir.reshard.conditions import refinement
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

_MAX_RANKS = 64
"""The number of ranks over which sums with noise are guaranteed to stay finite."""


def random_like(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a source of noise for `Placement.distribute`: tensor → noise of its shape, element type and device.

    The noise of an element has about the magnitude of the element, so sums with noise have the rounding errors of the
    data. Such sums stay finite over up to `_MAX_RANKS` ranks. For zeros, infinities and NaN, the magnitude is that of
    the smallest other element. For booleans, the noise is f64 around zero, and a placement uses its sign. For integers,
    it is from 0 to 3.
    """

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        """Return noise for a tensor, as described above."""
        if tensor.dtype == torch.bool:
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return torch.randint(0, 4, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        wide_dtype = torch.complex128 if tensor.is_complex() else torch.float64
        size = tensor.detach().to("cpu", wide_dtype).abs()
        is_usual = size.isfinite() & (size > 0)
        size = size.where(is_usual, size[is_usual].min() if is_usual.any() else 1.0)
        limit = (torch.finfo(tensor.dtype).max - size).clamp(min=0) / _MAX_RANKS
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).clamp(-2, 2) / 2
        return (values * size.minimum(limit)).to(tensor.device, tensor.dtype)

    return noise


def distribute(
    tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, noise: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Return the local tensor of each rank. `noise` makes the partial values of ranks differ.

    The placements are applied one after the other, outermost first. For example, with `dp: S(0), tp: S(1)` on 2 x 2
    ranks, the tensor is first cut into 2 blocks of rows, with the indices (0,) and (1,). Then each block is cut into 2
    blocks of columns, with indices such as (0, 1).

    Raises:
        SpmdirError: a placement does not support the element type or the values.
    """
    dtype = DTYPES_OF_TORCH.get(tensor.dtype)
    if dtype is None:
        supported = ", ".join(map(str, DTYPES_OF_TORCH))
        raise UnsupportedError(
            f"values of type {tensor.dtype} have no element type in the IR; expected one of {supported}"
        )
    for axis, placement in sharding.entries:
        if not placement.supports(dtype):
            raise UnsupportedError(
                f"values of type {dtype} cannot be laid out as {placement} on axis '{axis}'; expected a placement that "
                f"supports {dtype}, such as replication: leave the axis out"
            )
    mesh = refinement(mesh, sharding)
    layers = _layers(sharding, mesh)
    local_tensors: dict[tuple[int, ...], torch.Tensor] = {(): tensor}
    for axes, placement in layers:
        inner_tensors: dict[tuple[int, ...], torch.Tensor] = {}
        for indices, outer_tensor in local_tensors.items():
            shards = _distribute(placement, outer_tensor, mesh.group_size(axes), noise)
            inner_tensors.update(((*indices, index), shard) for index, shard in enumerate(shards))
        local_tensors = inner_tensors
    return [local_tensors[_layer_indices(layers, mesh, rank)] for rank in range(mesh.world_size)]


def local_tensor(tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> torch.Tensor:
    """Return the local tensor of one rank; a view of `tensor` if all placements shard or replicate.

    Partial values have zeros as noise, so each rank can compute its local tensor without the other ranks.
    """
    mesh = refinement(mesh, sharding)
    for axes, placement in _layers(sharding, mesh):
        count, index = mesh.group_size(axes), mesh.index(rank, axes)
        if isinstance(placement, ShardPlacement):
            tensor = take(tensor, placement.dim, placement.ranges(tensor.shape[placement.dim], count, index))
        elif placement.trait != "replicated":
            tensor = _distribute(placement, tensor, count, torch.zeros_like)[index]
    return tensor


def held_ranges(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[Ranges, ...]:
    """Return the positions that `rank` holds of each dimension, in local order. Padding follows them.

    Raises:
        UnsupportedError: the local tensors do not contain elements of the tensor, such as partial values.
    """
    rank_holding = rank_elements(sharding, shape, mesh, rank)
    for axes, placement in rank_holding.other_placements:
        raise UnsupportedError(
            f"local tensors with {placement} on axis '{axes[0]}' do not contain elements of the tensor, so "
            "ranks cannot save them; expected S or R: shard or replicate the tensor"
        )
    return rank_holding.ranges


def collect(
    shards: Sequence[torch.Tensor],
    sharding: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the global tensor from the local tensors of all ranks.

    Args:
        shards: [rank], the local tensor.
        shape: the global shape.
        dtype: the global element type, which may differ from the local one; if None, that of the shards.

    Raises:
        SpmdirError: copies differ between ranks beyond rounding.
    """
    mesh = refinement(mesh, sharding)
    layers = _layers(sharding, mesh)
    tensors = {_layer_indices(layers, mesh, rank): shard for rank, shard in enumerate(shards)}
    element_type = DTYPES_OF_TORCH[dtype or shards[0].dtype]
    types = _outer_types(TensorMeta(tuple(shape), element_type), layers, mesh)
    while layers:  # the innermost layer first: join the tensors of each group of ranks along its axes
        axes, placement = layers.pop()
        groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for indices in sorted(tensors):
            groups.setdefault(indices[:-1], []).append(tensors[indices])
        for group in groups.values():
            _check_copies(group, axes[0], placement)
        tensors = {}
        for indices, group in groups.items():
            shape, element_type = types[indices].shape, types[indices].dtype
            tensors[indices] = _call_placement(placement, placement.collect_as, group, shape, element_type)
    return tensors[()]


Layers = list[tuple[tuple[str, ...], Placement]]
"""(axes that act as one axis, their placement), in the order of distribution."""


def _layers(sharding: Sharding, mesh: Mesh) -> Layers:
    """Return the layers of a sharding; all other axes of the mesh replicate."""
    placed = dict(sharding.entries)
    other_axes = [axis for axis in mesh.axis_names if axis not in placed]
    return [*sharding.layers, *(((axis,), sharding[axis]) for axis in other_axes)]


def _layer_indices(layers: Layers, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Return the index of `rank` along each layer."""
    return tuple(mesh.index(rank, axes) for axes, _ in layers)


def _outer_types(meta: TensorMeta, layers: Layers, mesh: Mesh) -> dict[tuple[int, ...], TensorMeta]:
    """Return indices along the outer layers → the type of the local tensor there, which the next layer distributes.

    `()` is the key of the global tensor.
    """
    types: dict[tuple[int, ...], TensorMeta] = {(): meta}
    outer: list[tuple[int, ...]] = [()]
    for axes, placement in layers:
        count = mesh.group_size(axes)
        inner = [(*indices, index) for indices in outer for index in range(count)]
        for indices in inner:
            outer_type = types[indices[:-1]]
            types[indices] = TensorMeta(*own_type(placement, outer_type.shape, outer_type.dtype, count, indices[-1]))
        outer = inner
    return types


def _distribute(placement: Placement, tensor: torch.Tensor, count: int, noise: Callable[..., Any]) -> Sequence[Any]:
    """Call `distribute` of a placement, and check that it returns `count` tensors."""
    local_tensors = _call_placement(placement, placement.distribute, tensor, count, noise)
    if isinstance(local_tensors, (list, tuple)) and all(isinstance(shard, torch.Tensor) for shard in local_tensors):
        if len(local_tensors) == count:
            return local_tensors
        description = f"{len(local_tensors)} tensors"
    else:
        description = shown(local_tensors)
    raise SpmdirError(
        f"`distribute` of {placement} returns {description}; expected a list of {count} tensors, one for each rank",
        place(placement.distribute),
    )


def _call_placement(placement: Placement, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a placement; its exceptions become located errors."""
    try:
        return method(*arguments)
    except SpmdirError:
        raise
    except (Exception, SystemExit) as error:
        # Plug-in code may raise anything. For the user, the declaration is wrong.
        name = method.__name__.removesuffix("_as")
        message = f"`{name}` of {placement} fails: {type(error).__name__}: {first_line(error)}"
        raise SpmdirError(message, failing_line([placement], error)) from error


def _check_copies(group: Sequence[torch.Tensor], axis: str, placement: Placement) -> None:
    """Raise SpmdirError if ranks along an axis have different copies of a value that is replicated there."""
    if placement.trait != "replicated":
        return
    for copy in group[1:]:
        if copy.shape != group[0].shape or copy.dtype != group[0].dtype or not _is_close(group[0], copy):
            raise SpmdirError(
                f"ranks disagree along axis '{axis}' on a value that is replicated there: "
                f"{_summary(group[0])} against {_summary(copy)}; expected equal values: check the "
                "collectives before it, and that its ops are deterministic"
            )


def _is_close(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors of one type are equal up to rounding, relative to the largest element."""
    if torch.equal(first, second) or not first.numel():
        return True
    if not (first.is_floating_point() or first.is_complex()):
        return False
    limit = 64 * torch.finfo(first.dtype).eps
    finite = first.abs()[torch.isfinite(first)]
    absolute_limit = limit * float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(first, second, limit, absolute_limit, equal_nan=True)


def _summary(tensor: torch.Tensor) -> str:
    """Return the shape and the first elements of a tensor, for errors."""
    values = ", ".join(f"{value}" for value in tensor.flatten()[:3].tolist())
    return f"{list(tensor.shape)} [{values}{', …' if tensor.numel() > 3 else ''}]"
