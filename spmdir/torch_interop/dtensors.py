"""The parts of a DTensor, which have no public name in torch 2.11 to 2.13."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard as StridedShard  # noqa: F401

inner_tensor: Any = attrgetter("_local_tensor")
"""Return the local shard of a DTensor without recording it in autograd, unlike `DTensor.to_local`."""

dtensor_spec: Any = attrgetter("_spec")
"""Return the mesh, placements, shape and strides of a DTensor, in a value that DTensors may share."""


def shard_order(tensor: DTensor) -> Any:
    """Return the order of the mesh axes that shard each dimension; None if it is that of the mesh."""
    return getattr(tensor._spec, "shard_order", None)
