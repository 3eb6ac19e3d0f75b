"""Processor seconds in which `shard_module` makes a module, a layer: on the first rank, and on the others.

Four gloo ranks shard the Llama of `module_step` by the recipe `fsdp`, with more and more layers. Processor time leaves
out what ranks wait for each other, which depends on the cores that they share. A model of one layer comes first, and
takes what is imported and read once.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

import spmdir
from benchmarks.measure import Row, listed, options, print_table
from benchmarks.module_step import RANKS, VOCABULARY, Llama, Size
from tests.lowering.gloo_ranks import on_ranks

TARGETS = {"first rank": 0.3, "other ranks": 0.05}
"""Which ranks → the most seconds that a layer should take."""


def measure(rank: int, layers: Sequence[int], dim: int) -> list[float]:
    """Return the processor seconds of this rank for each number of layers."""
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    tokens = torch.randint(0, VOCABULARY, (8, 64), generator=torch.Generator().manual_seed(1))
    seconds = []
    for count in (1, *layers):
        model = Llama(Size(count, dim, *tokens.shape))
        dist.barrier()
        begin = time.process_time()
        spmdir.shard_module(model, device_mesh, "fsdp", (tokens,), local_inputs=True, out_shardings=["dp: S(0)"])
        seconds.append(time.process_time() - begin)
    return seconds


def rows(layers: Sequence[int], ranks: Sequence[Sequence[float]]) -> list[Row]:
    """Return the figures of a run: what each layer adds from one number of layers to the next."""
    sides = {"first rank": ranks[0], "other ranks": [max(found) for found in zip(*ranks[1:], strict=True)]}
    shown = []
    for name, seconds in sides.items():
        for (few, before), (many, after) in itertools.pairwise(zip((1, *layers), seconds, strict=True)):
            what, detail = f"{name}, {few} to {many} layers", f"{after:.1f} s with {many}"
            shown.append(Row(what, (after - before) / (many - few), TARGETS[name], form="{:.2f} s", detail=detail))
    return shown


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[2, 8, 24], help="increasing numbers, default 2,8,24")
    parser.add_argument("--dim", type=int, default=128, help="default 128")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_ranks(RANKS, measure, Path(folder), given.layers, given.dim)
    print_table(f"shard_module on {RANKS} ranks, processor seconds a layer", rows(given.layers, ranks))


if __name__ == "__main__":
    main()
