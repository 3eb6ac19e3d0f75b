"""Support `torch.autograd.detect_anomaly` for DTensor gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding


@cache
def support_anomaly_detection() -> None:
    """Register a sharding rule of `_is_any_true` with DTensor, once for the process.

    In anomaly detection, autograd uses this op to find NaN in gradients, and DTensor has no rule for it. Each rank
    checks its own shard, as in FSDP2.
    """

    def shardings(x: Any) -> Any:
        """Return the pairs ([placement of the result], [placement of the operand]) that DTensor may use.

        The truth values of shards count as summands, so a NaN in one shard gives a true result.
        """
        sharded = [([Partial("sum")], [Shard(dim)]) for dim in range(x.ndim)]
        return [([Replicate()], [Replicate()]), *sharded]

    register_sharding(torch.ops.aten._is_any_true.default)(shardings)
