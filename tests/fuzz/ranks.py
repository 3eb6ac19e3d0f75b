"""Two real ranks, one of which is made different: all of them end with right numbers, or with a SpmdirError."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

import spmdir
from spmdir.checking.rules.pool import Death, Worker
from spmdir.checking.rules.worker import serve
from spmdir.core.errors import SpmdirError
from tests.fuzz.batch import Kind, Wrong

WORLD = 2
PATIENCE = 120
"""Seconds that a rank waits for the others in a collective: long, for a busy machine."""

LIMIT = 300
"""Seconds for a case on both ranks, after which it hangs."""

DIFFERENCES = {
    "nothing": "",
    "weights": "other initial weights",
    "sizes": "an input of another size",
    "program": "a layer more",
    "type": "an input of another element type",
    "shardings": "other shardings",
    "error in the model": "an exception while the model is traced",
    "error before the run": "an exception of its own before the first run",
    "calls": "a run more than the others",
    "seed": "another seed of the random generator",
}
"""What one rank has that the other has not."""


@attrs.frozen
class Pair:
    """A model on two ranks, the second of which is different in one respect."""

    difference: str
    layers: int
    width: int
    batch: int
    dropout: bool
    dynamic: bool
    sharding: str
    mesh: Mapping[str, int] = {"tp": WORLD}

    def __str__(self) -> str:
        return f"rank 1 has {DIFFERENCES[self.difference] or 'nothing else'}: {attrs.asdict(self)}"


class Net(nn.Module):
    """Layers of one width; a rank may fail in it."""

    def __init__(self, pair: Pair, more: int, fails: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(pair.width, pair.width) for _ in range(pair.layers + more))
        self.fails, self.dropout = fails, pair.dropout

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if self.fails:
            raise RuntimeError("this rank fails")
        return nn.functional.dropout(x, 0.5, training=self.dropout)


def check(pair: Pair) -> str | None:
    """Run the pair on both ranks; raises Wrong unless each of them ends as it may."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORLD) as threads:
        asked = [threads.submit(w.ask, ("run", r, pair, folder), LIMIT) for r, w in enumerate(_workers())]
        ended = [answer.result() for answer in asked]
    for rank, answer in enumerate(ended):
        if isinstance(answer, Death):
            raise Wrong(f"rank {rank}: {answer}; all: {ended}")
        what, said = answer
        if what not in ("right", "rejected"):
            raise Wrong(f"rank {rank}: {what}: {said}; all: {ended}")
    rejected = [said for what, said in ended if what == "rejected"]
    if pair.difference == "nothing" and rejected:
        raise Wrong(f"equal ranks are rejected: {rejected}")
    return rejected[0] if rejected else None


@cache
def _workers() -> tuple[Worker, ...]:
    return tuple(Worker(None, "tests.fuzz.ranks") for _ in range(WORLD))


def stop() -> None:
    """End the processes of the ranks."""
    for worker in _workers():
        worker.stop()


class Rank:
    """One rank; a process group for each case, so that no case meets what another one has left."""

    def __init__(self, setup: Any, say: Callable[[str], None]):
        torch.set_num_threads(1)
        self._say = say

    def run(self, rank: int, pair: Pair, folder: str) -> tuple[str, str]:
        """Return how the case ends here: ("right" | "rejected" | "wrong" | "raw", what there is to say)."""
        self._say(f"running rank {rank}")
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=PATIENCE)
        )
        try:
            return _run(rank, pair)
        except SpmdirError as error:
            return "rejected", error.message
        except Own:
            return "rejected", "an exception of its own"
        except Exception as error:
            return "raw", f"{type(error).__name__}: {error}"
        finally:
            dist.destroy_process_group()


class Own(Exception):
    """An error of the user's program, which spmdir never sees."""


def _run(rank: int, pair: Pair) -> tuple[str, str]:
    def has(difference: str) -> bool:
        return rank == 1 and pair.difference == difference

    model = Net(pair, int(has("program")), has("error in the model")).double()
    if has("weights"):
        with torch.no_grad():
            model.layers[-1].bias.add_(1)  # type: ignore
    shape = (pair.batch + 2 * has("sizes"), pair.width)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if has("type"):
        x = x.float()
    sharding = "tp: S(1)" if has("shardings") else pair.sharding
    batch = torch.export.Dim("batch", min=2, max=64)
    parallel = spmdir.parallelize(
        model,
        (x,),
        spmdir.Mesh(pair.mesh),
        {"layers.0.weight": sharding},
        dynamic_shapes=({0: batch},) if pair.dynamic else None,
    )
    if has("error before the run"):
        raise Own
    torch.manual_seed(3 + has("seed"))
    found = parallel(x)
    torch.manual_seed(3)
    expected = model(x)
    if found.shape != expected.shape:
        return "wrong", f"the shape is {found.shape} instead of {expected.shape}"
    if not torch.allclose(found, expected, rtol=1e-9, atol=1e-9):
        return "wrong", f"the numbers differ by {(found - expected).abs().max()}"
    if has("calls"):
        parallel(x)
    return "right", ""


pairs = st.builds(
    Pair,
    st.sampled_from([*DIFFERENCES]),
    layers=st.integers(1, 2),
    width=st.sampled_from((4, 3)),
    batch=st.sampled_from((4, 3)),
    dropout=st.booleans(),
    dynamic=st.booleans(),
    sharding=st.sampled_from(("tp: S(0)", "", "tp: S(1)")),
    mesh=st.sampled_from(({"tp": WORLD}, {"dp": 1, "tp": WORLD}, {"tp": WORLD, "dp": 1})),
)

RANKS = Kind("ranks", pairs, check, examples=6, seconds=60, share=1)

if __name__ == "__main__":
    serve(Rank)
