"""PyTorch's schedulers of collectives on the graph of one rank, deciding by the prices of spmdir."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._inductor.fx_passes import overlap_scheduling
from torch._inductor.fx_passes.memory_estimator import MemoryTracker
from torch.utils.flop_counter import flop_registry

from benchmarks.measure import Row
from benchmarks.rank_graph import RankGraph, is_start
from spmdir.schedule.simulate import Execution

aten = torch.ops.aten

PEER = "PyTorch"

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    PEER: {},
    f"{PEER}, buckets of 500 MB before": {"pre_bucketing_fsdp_collectives_bucket_cap_mb": 500.0},
    f"{PEER}, exposed ones bucketed first": {"bucket_exposed_first": True},
    f"{PEER}, no buckets": {"collective_bucketing": False, "pre_bucketing_fsdp_collectives": False},
}
"""Name → what is set beside the defaults of `schedule_overlap_bucketing` with buckets."""

_COMPUTE = (
    aten.einsum,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
"""Ops that are compute as the scheduler means it, but have no formula in PyTorch."""


def schedule_overlap_bucketing(found: RankGraph, **given: Any) -> None:
    """Reorder a graph by `torch._inductor.fx_passes.overlap_scheduling.schedule_overlap_bucketing`, with buckets.

    It counts memory on the CPU as it does on accelerators, and asks no device for times.
    """
    price = _price(found)
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    tracker = functools.partial(MemoryTracker, device_filter=lambda device: True)
    with (
        mock.patch.object(overlap_scheduling, "MemoryTracker", tracker),
        mock.patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", lambda node: price(node, None)),
        mock.patch.dict(flop_registry, dict.fromkeys(_COMPUTE, lambda *_, **__: 0)),
    ):
        overlap_scheduling.schedule_overlap_bucketing(
            found.graph,
            **{"collective_bucketing": True, **given},
            custom_runtime_estimation=price,
            compute_estimator="analytical",
        )


def _price(found: RankGraph) -> Callable[[fx.Node, int | None], float]:
    """Return (node, bytes) → milliseconds; bytes that are given are 0, for the latency of a collective."""

    def price(node: fx.Node, size: int | None) -> float:
        if not is_start(node):
            return 1e3 * found.seconds(node)
        transfer = found.transfer(node)
        return 1e3 * (transfer.seconds if size is None else transfer.latency)

    return price


def compared(found: Mapping[str, Execution]) -> list[Row]:
    """Return how a program runs by who scheduled it, ours beside PyTorch's by default and in its best variant."""
    ours, peer = found["spmdir"], found[PEER]
    best = min((name for name in found if name.startswith(PEER)), key=lambda name: found[name].seconds)
    shown = [
        Row(f"step over {PEER}", ours.seconds / peer.seconds, 1.0),
        Row(f"step over {PEER}'s best", ours.seconds / found[best].seconds, 1.0, detail=best),
        Row(f"exposed over {PEER}", ours.exposed_seconds / peer.exposed_seconds, 0.7),
    ]
    for name, run in found.items():
        sent = sum(task.transfer is not None for task in run.program.tasks)
        detail = f"{1e3 * run.exposed_seconds:.2f} ms exposed, {sent} collectives, {run.peak_bytes / 1e9:.2f} GB"
        shown.append(Row(name, 1e3 * run.seconds, form="{:.2f} ms", detail=detail))
    return shown
