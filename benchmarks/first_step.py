"""From a model to its first training step on four gloo processes, beside FSDP2 with torch.compile.

Each side starts in fresh processes, with an empty cache of compiled code that its ranks share as those of a machine do,
and trains the same Llama with AdamW. Counted are seconds from when the modules are imported to the end of the first
step, on the slowest rank: with nothing kept, with the decided program read from a file, and with the rank's program
compiled by Inductor. Each side is told on stderr when it ends; a minute of C++ compilation is no hang.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

import spmdir
from benchmarks.gloo_step import VOCABULARY, Sizes, llama, loss_of
from benchmarks.measure import Row, listed, options, print_table
from tests.lowering.gloo_ranks import on_ranks

MESH = spmdir.Mesh({"dp": 4})
SHARDINGS = {"arg*": "dp: S(0)", "*weight": "dp: S(0)"}
PEER = "FSDP2 + torch.compile"
SIDES = {
    "cold": "spmdir, nothing kept",
    "kept": "spmdir, decision kept",
    "compiled": "spmdir, compiled",
    "torch": PEER,
}
"""The word of the command line for a side → its name. `kept` reads the program that `cold` keeps."""


def ours(sizes: Sizes, ids: Tensor, cache: str | None = None, compile: bool = False) -> Callable[[], Any]:
    """Return the step of a rank that spmdir partitions."""
    model = llama(sizes)
    step, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    parallel = spmdir.parallelize(step, MESH, SHARDINGS, (ids,), state=state, cache=cache, compile=compile)
    return lambda: parallel(ids)


def torchs(sizes: Sizes, ids: Tensor) -> Callable[[], Any]:
    """Return the step of a rank by `fully_shard` of each layer, which torch.compile compiles."""
    from torch.distributed.fsdp import fully_shard

    model: Any = llama(sizes)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (MESH.world_size,), mesh_dim_names=("dp",))
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = fully_shard(torch.compile(layer), mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = ids.chunk(MESH.world_size)[dist.get_rank()]

    def step() -> None:
        loss_of(model, own).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def start(rank: int, side: str, sizes: Sizes, folder: str) -> float:
    """Return the seconds to the end of the first step of a side on this rank."""
    own = re.sub(r"\W+", "-", side)  # compilers split paths at spaces
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/{own}"
    ids = torch.randint(0, VOCABULARY, (sizes.batch, sizes.seq), generator=torch.Generator().manual_seed(1))
    sides = {
        PEER: torchs,
        SIDES["cold"]: partial(ours, cache=f"{folder}/programs"),
        SIDES["kept"]: partial(ours, cache=f"{folder}/programs"),
        SIDES["compiled"]: partial(ours, compile=True),
    }
    dist.barrier()
    begin = time.perf_counter()
    sides[side](sizes, ids)()
    return time.perf_counter() - begin


def main() -> None:
    parser = options(__doc__)
    for field, default in zip(attrs.fields(Sizes), (2, 64, 32, 8), strict=True):
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--sides", type=listed(str), default=list(SIDES), help=f"default {','.join(SIDES)}")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.dim, given.seq, given.batch)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in map(SIDES.__getitem__, given.sides):
            print(f"{side}: ", end="", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as ranks:
                seconds[side] = max(on_ranks(MESH.world_size, start, Path(ranks), side, sizes, folder))
            print(f"{seconds[side]:.1f} s", file=sys.stderr, flush=True)
    rows = [Row(side, found, form="{:.1f} s") for side, found in seconds.items()]
    if PEER in seconds:
        rows += [
            Row(f"{side} over {PEER}", found / seconds[PEER], 1.0) for side, found in seconds.items() if side != PEER
        ]
    print_table(f"to the first step of {sizes} on mesh {MESH}", rows)


if __name__ == "__main__":
    main()
