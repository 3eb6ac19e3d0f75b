"""DTensor's planner of reshards, and the process group that it needs, in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached
from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore


def spec(
    device_mesh: Any, placements: Sequence[Any], shape: Sequence[int], order: Sequence[tuple[int, tuple[int, ...]]]
) -> Any:
    """Return the layout of a contiguous tensor; `order` is (dimension, numbers of the mesh axes that shard it)."""
    example = torch.empty(tuple(shape), device="meta")
    meta = TensorMeta(example.shape, example.stride(), example.dtype)
    entries = tuple(ShardOrderEntry(tensor_dim=dim, mesh_dims=axes) for dim, axes in order)
    return DTensorSpec(device_mesh, tuple(placements), tensor_meta=meta, shard_order=entries)


def transitions(source: Any, target: Any, use_graph: bool) -> Sequence[Any]:
    """Return the steps by which DTensor goes from one layout to another, by its greedy or its graph planner."""
    return _gen_transform_infos_non_cached(source, target, use_graph)
