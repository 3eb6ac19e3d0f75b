"""A training step of a Llama on four gloo processes beside torch's FSDP2 with tensor parallelism.

On both sides the batch is sharded over `dp`, weights and the state of AdamW over `tp`, Megatron style, and again over
`dp`. The sides take turns, each round in another order; a round takes as long as its slowest process. Prints ratios of
medians over rounds, and for each side its messages, its time and the processor time of a rank: where there are fewer
cores than ranks, a step takes at least the latter times the ranks to a core.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d

import spmdir
from benchmarks.measure import Row, options, print_table
from spmdir.pipeline.pipeline import STANDARD, Pipeline
from tests.lowering.gloo_ranks import on_ranks

MESH = spmdir.Mesh({"dp": 2, "tp": 2})

SHARDINGS = {
    "arg*": "dp: S(0)",
    "*.[qkv]_proj.weight": "tp: S(0), dp: S(0)",
    "*.o_proj.weight": "tp: S(1), dp: S(0)",
    "*.gate_proj.weight": "tp: S(0), dp: S(0)",
    "*.up_proj.weight": "tp: S(0), dp: S(0)",
    "*.down_proj.weight": "tp: S(1), dp: S(0)",
    "model.embed_tokens.weight": "tp: S(0), dp: S(0)",
    "lm_head.weight": "tp: S(0), dp: S(0)",
    "*norm.weight": "dp: S(0)",
}
"""Where FSDP2 keeps the parameters of a tensor parallel module, which it shards along dimension 0."""

PIPELINES: dict[str, Pipeline | None] = {"unscheduled": Pipeline(STANDARD, topology="cpu-gloo"), "scheduled": None}
"""Name → the pipeline of one side of ours, both for one machine: that of `parallelize` on the CPU if None."""

PEER = "FSDP2+TP"

TARGETS = {("scheduled", "unscheduled"): 0.6, ("scheduled", PEER): 0.4}
"""Side, other side → the most that the time of a step should be of the other's."""

VOCABULARY = 1024


@attrs.frozen
class Sizes:
    """The sizes of the model and of a batch."""

    layers: int
    dim: int
    seq: int
    batch: int


@attrs.frozen
class Measured:
    """What one process measured of one side: seconds of each round, passed and of its processor time, and messages."""

    seconds: list[float] = attrs.field(factory=list)
    cpu: list[float] = attrs.field(factory=list)
    messages: int = 0


def llama(sizes: Sizes) -> nn.Module:
    """Return a Llama with random weights; equal on all ranks, since all seed alike."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=sizes.dim,
        intermediate_size=3 * sizes.dim,
        num_hidden_layers=sizes.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=sizes.seq,
    )
    return LlamaForCausalLM(config)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the cross entropy of each next token."""
    logits = model(input_ids=ids, use_cache=False).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def ours(sizes: Sizes, ids: Tensor, device_mesh: Any, pipeline: Pipeline | None) -> Callable[[], Tensor]:
    """Return the step of a rank that spmdir compiles."""
    model = llama(sizes)
    step, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    parallel = spmdir.parallelize(
        step, MESH, SHARDINGS, (ids,), state=state, device_mesh=device_mesh, sync_state=False, pipeline=pipeline
    )
    return lambda: parallel(ids)


def torchs(sizes: Sizes, ids: Tensor, device_mesh: Any) -> Callable[[], Tensor]:
    """Return the step of a rank by `parallelize_module` over `tp` and `fully_shard` of each layer over `dp`."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model: Any = llama(sizes)
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = {f"model.layers.*.self_attn.{name}_proj": column for name in "qkv"}
    plan |= {f"model.layers.*.mlp.{name}_proj": column for name in ("gate", "up")}
    plan |= {"model.layers.*.self_attn.o_proj": row, "model.layers.*.mlp.down_proj": row}
    plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
    plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, device_mesh["tp"], plan)  # type: ignore  # a dict is invariant
    for layer in model.model.layers:
        fully_shard(layer, mesh=device_mesh["dp"])
    fully_shard(model, mesh=device_mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = ids.chunk(MESH.sizes["dp"])[device_mesh.get_local_rank("dp")]

    def step() -> Tensor:
        loss = loss_of(model, own)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(rank: int, sizes: Sizes, rounds: int) -> dict[str, Measured]:
    """Return side → what this rank measured of it.

    Raises:
        AssertionError: the sides have other losses.
    """
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(MESH.sizes.values()), mesh_dim_names=MESH.axis_names)
    device_mesh._flatten()
    ids = torch.randint(0, VOCABULARY, (sizes.batch, sizes.seq), generator=torch.Generator().manual_seed(1))
    sides = {name: ours(sizes, ids, device_mesh, pipeline) for name, pipeline in PIPELINES.items()}
    sides[PEER] = torchs(sizes, ids, device_mesh)
    losses = [step() for step in sides.values()]
    dist.all_reduce(losses[-1], group=device_mesh["dp"].get_group())  # the peer's is that of its part of the batch
    losses[-1] /= MESH.sizes["dp"]
    for loss in losses:
        torch.testing.assert_close(loss, losses[0], rtol=1e-4, atol=0.0)
    return measured_in_turns(sides, rounds)


def measured_in_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Measured]:
    """Return what this rank measures of the step of each side; the sides take turns, each round in another order."""
    found = {name: Measured(messages=count_messages(step)) for name, step in sides.items()}
    names = list(sides)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            sides[name]()
            found[name].seconds.append(time.perf_counter() - begin)
            found[name].cpu.append(time.process_time() - cpu)
    return found


def count_messages(step: Callable[[], Any]) -> int:
    """Return the number of collectives in a step."""
    groups: list[Any] = list(distributed_c10d._world.pg_map)
    before = sum(group._get_sequence_number_for_group() for group in groups)
    step()
    return sum(group._get_sequence_number_for_group() for group in groups) - before


def rows(ranks: Sequence[dict[str, Measured]]) -> list[Row]:
    """Return the figures of a run, of what each rank measured."""
    names = list(ranks[0])
    slowest = {
        name: [max(turn) for turn in zip(*(found[name].seconds for found in ranks), strict=True)] for name in names
    }
    step = {name: statistics.median(seconds) for name, seconds in slowest.items()}
    shown = [Row(f"{name} over {PEER}", step[name] / step[PEER], TARGETS.get((name, PEER))) for name in names[:-1]]
    for name, other in itertools.combinations(reversed(names[:-1]), 2):
        shown.append(Row(f"{name} over {other}", step[name] / step[other], TARGETS.get((name, other))))
    for name in names:
        cpu = statistics.median(seconds for found in ranks for seconds in found[name].cpu)
        detail = f"{ranks[0][name].messages} messages, {1e3 * cpu:.0f} ms of processor a rank"
        shown.append(Row(name, 1e3 * step[name], form="{:.1f} ms", detail=detail))
    return shown


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default 20")
    for field, default in zip(attrs.fields(Sizes), (2, 64, 32, 8), strict=True):
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default {default}")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.dim, given.seq, given.batch)
    with tempfile.TemporaryDirectory() as folder:
        ranks = on_ranks(MESH.world_size, measure, Path(folder), sizes, given.rounds)
    print_table(f"a step of {sizes} on mesh {MESH}", rows(ranks))


if __name__ == "__main__":
    main()
