"""`torch.autograd.detect_anomaly` on gradients that are DTensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding


@cache
def support_anomaly_detection() -> None:
    """Register with DTensor how `_is_any_true` is sharded, by which autograd looks for NaN.

    Each rank looks at its own shard, as the ranks of FSDP2 do.
    """

    def shardings(x: Any) -> Any:
        of_shards = [([Partial("sum")], [Shard(dim)]) for dim in range(x.ndim)]
        return [([Replicate()], [Replicate()]), *of_shards]

    register_sharding(torch.ops.aten._is_any_true.default)(shardings)
