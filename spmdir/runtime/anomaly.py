"""Support `torch.autograd.detect_anomaly` for DTensor gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding


@cache
def support_anomaly_detection() -> None:
    """Register a sharding rule of `_is_any_true` with DTensor; autograd uses this op to look for NaN.

    Each rank checks its own shard, as in FSDP2.
    """

    def shardings(x: Any) -> Any:
        sharded = [([Partial("sum")], [Shard(dim)]) for dim in range(x.ndim)]
        return [([Replicate()], [Replicate()]), *sharded]

    register_sharding(torch.ops.aten._is_any_true.default)(shardings)
