"""Text generation of a Llama on gloo ranks beside tensor parallelism of transformers (`tp_plan="auto"`).

Both sides read one checkpoint in one run, and call `generate` for equal prompts; the tokens must be equal. The sides
take turns, each round in another order, and a round takes as long as its slowest rank. The time of a decode step is
the difference of two calls, divided by the number of further tokens. The time to the first token is that of a call for
one prompt and one token. Start-up is the time from the checkpoint to the first token, once for each side.

The last row is the write of one token into a cache of 64 MB, on one device, in place and with a copy.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist

import spmdir
import spmdir.serving
from benchmarks.gloo_step import count_messages
from benchmarks.measure import Row, options, print_table
from tests.lowering.gloo_ranks import on_ranks

OURS, PEER = "spmdir", "transformers"

TARGETS = {"decode step": 0.7, "first token": 1.0, "start-up": 1.5}
"""Figure → the largest acceptable ratio of our time to that of the peer."""

VOCABULARY = 1024

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Function of prompts of one length and the number of new tokens."""


@attrs.frozen
class Sizes:
    """The sizes of the model and of the calls.

    Attributes:
        layers, dim: of the model.
        batch: the number of prompts of a decode step.
        prompt: the number of tokens of a prompt.
        tokens: the number of decode steps of a round.
    """

    layers: int
    dim: int
    batch: int
    prompt: int
    tokens: int


@attrs.frozen
class Measured:
    """The figures of one side on one rank.

    Attributes:
        start, start_cpu: seconds of the start: elapsed, and of processor time.
        first: seconds to the first token, for each round.
        decode: seconds of a decode step, for each round.
        cpu: seconds of processor time of a decode step, for each round.
        messages: the number of collectives of a decode step.
    """

    start: float
    start_cpu: float
    first: list[float] = attrs.field(factory=list)
    decode: list[float] = attrs.field(factory=list)
    cpu: list[float] = attrs.field(factory=list)
    messages: float = 0


def save_checkpoint(sizes: Sizes, folder: str) -> None:
    """Save a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=sizes.dim,
        intermediate_size=3 * sizes.dim,
        num_hidden_layers=sizes.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def ours(sizes: Sizes, folder: str) -> Generate:
    """Return `generate` of a served model, with caches sharded by heads."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder).eval()
    length = sizes.prompt + sizes.tokens + 1
    served = spmdir.serving.serve(
        model,
        spmdir.Mesh({"tp": dist.get_world_size()}),
        {"caches.*": "tp: S(2)"},
        batch=sizes.batch,
        max_length=length,
        prompt_lengths=[sizes.prompt],
    )
    return served.generate


def transformers_tp(sizes: Sizes, folder: str) -> Generate:
    """Return `generate` of transformers, with its own plan of tensor parallelism."""
    from transformers import LlamaForCausalLM

    os.environ.update(RANK=str(dist.get_rank()), WORLD_SIZE=str(dist.get_world_size()), LOCAL_RANK=str(dist.get_rank()))
    model = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto").eval()

    def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        tokens = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)  # type: ignore
        return tokens[:, ids.shape[1] :].tolist()

    return generate


SIDES = {PEER: transformers_tp, OURS: ours}


def measure(rank: int, sizes: Sizes, rounds: int, folder: str) -> dict[str, Measured]:
    """Return side → its figures on this rank.

    Raises:
        AssertionError: the sides generate different tokens.
    """
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, VOCABULARY, (sizes.batch, sizes.prompt), generator=generator).tolist()
    sides, measured, tokens = {}, {}, {}
    for name, start in SIDES.items():
        dist.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        sides[name] = start(sizes, folder)
        sides[name](prompts[:1], 1)
        measured[name] = Measured(time.perf_counter() - begin, time.process_time() - cpu)
        tokens[name] = sides[name](prompts, sizes.tokens)
    assert tokens[OURS] == tokens[PEER]
    for name, generate in sides.items():
        counts = [count_messages(partial(generate, prompts, count)) for count in (1, 2)]
        measured[name] = attrs.evolve(measured[name], messages=counts[1] - counts[0])
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            first, _ = timed(partial(sides[name], prompts[:1], 1))
            prefill, prefill_cpu = timed(partial(sides[name], prompts, 1))
            all_steps, all_cpu = timed(partial(sides[name], prompts, 1 + sizes.tokens))
            measured[name].first.append(first)
            measured[name].decode.append((all_steps - prefill) / sizes.tokens)
            measured[name].cpu.append((all_cpu - prefill_cpu) / sizes.tokens)
    return measured


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call that all ranks start together: elapsed, and of processor time."""
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - cpu


def rows(ranks: Sequence[dict[str, Measured]]) -> list[Row]:
    """Return the figures of a run."""
    seconds = {}
    for name in SIDES:
        results = [rank[name] for rank in ranks]
        seconds["decode step", name] = slowest([result.decode for result in results])
        seconds["first token", name] = slowest([result.first for result in results])
        seconds["start-up", name] = max(result.start for result in results)
    shown = [
        Row(f"{what}: {OURS} over {PEER}", seconds[what, OURS] / seconds[what, PEER], target)
        for what, target in TARGETS.items()
    ]
    for (what, name), value in seconds.items():
        results = [rank[name] for rank in ranks]
        detail = ""
        if what == "decode step":
            cpu = statistics.median(value for result in results for value in result.cpu)
            detail = f"{results[0].messages:.0f} messages, {1e3 * cpu:.1f} ms of processor time of a rank"
        if what == "start-up":
            cpus = [result.start_cpu for result in results]
            detail = f"{sum(cpus):.1f} s of processor time of all ranks, {max(cpus):.1f} s of one"
        shown.append(Row(f"{what}, {name}", 1e3 * value, form="{:.1f} ms", detail=detail))
    return shown


def slowest(figures: Sequence[Sequence[float]]) -> float:
    """Return the median over rounds of the time of the slowest rank."""
    return statistics.median(max(turn) for turn in zip(*figures, strict=True))


def write_rows(rounds: int) -> list[Row]:
    """Return the times to write one token of 16 sequences into a cache of 64 MB."""
    cache, rows = torch.zeros(16, 1024, 8, 128), torch.ones(16, 1, 8, 128)
    positions = torch.full((16, 1), 100)
    seconds = {}
    for name, op in (("in place", torch.ops.cache.write_), ("with a copy", torch.ops.cache.write)):
        seconds[name] = statistics.median(timed_alone(partial(op, cache, rows, positions)) for _ in range(rounds))
    return [Row(f"write one token, {name}", 1e3 * value, form="{:.3f} ms") for name, value in seconds.items()]


def timed_alone(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="default 4")
    parser.add_argument("--rounds", type=int, default=10, help="default 10")
    for field, default in zip(attrs.fields(Sizes), (16, 256, 4, 32, 16), strict=True):
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default {default}")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.dim, given.batch, given.prompt, given.tokens)
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(sizes, folder)
        ranks = on_ranks(given.ranks, measure, Path(folder), sizes, given.rounds, folder)
    print_table(f"generation of {sizes} on {given.ranks} ranks", [*rows(ranks), *write_rows(given.rounds)])


if __name__ == "__main__":
    main()
