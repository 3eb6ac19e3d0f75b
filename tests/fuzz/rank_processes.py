"""Processes that are the ranks of cases, one case after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from spmdir.checking.rules.pool import Death, Worker
from spmdir.checking.rules.worker import serve
from spmdir.core.errors import SpmdirError
from tests.fuzz.batch import Wrong

PATIENCE = 120
"""Seconds that a rank waits for the others in a collective: long, for a busy machine."""

LIMIT = 300
"""Seconds for a case on all ranks, after which it hangs."""

MOST = 4
"""How many ranks a case may have."""


class OnRanks(Protocol):
    """A case that ranks run together."""

    def run(self, rank: int) -> tuple[str, str]:
        """Return how it ends on a rank: ("right" | "wrong", what there is to say)."""
        ...


class Own(Exception):
    """An error of the user's program, which spmdir never sees."""


def run_on_ranks(world: int, case: OnRanks) -> list[str]:
    """Return the messages of the ranks that reject a case; raises Wrong unless the others are right."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(world) as threads:
        asked = [
            threads.submit(w.ask, ("run", r, world, case, folder), LIMIT) for r, w in enumerate(_workers()[:world])
        ]
        ended = [answer.result() for answer in asked]
    for rank, answer in enumerate(ended):
        if isinstance(answer, Death):
            raise Wrong(f"rank {rank}: {answer}; all: {ended}")
        what, said = answer
        if what not in ("right", "rejected"):
            raise Wrong(f"rank {rank}: {what}: {said}; all: {ended}")
    return [said for what, said in ended if what == "rejected"]


@cache
def _workers() -> tuple[Worker, ...]:
    return tuple(Worker(None, "tests.fuzz.rank_processes") for _ in range(MOST))


def stop() -> None:
    """End the processes of the ranks."""
    for worker in _workers():
        worker.stop()
    _workers.cache_clear()


class Rank:
    """One rank; a process group for each case, so that no case meets what another one has left."""

    def __init__(self, setup: Any, say: Callable[[str], None]):
        torch.set_num_threads(1)
        self._say = say

    def run(self, rank: int, world: int, case: OnRanks, folder: str) -> tuple[str, str]:
        """Return how the case ends here: ("right" | "rejected" | "wrong" | "raw", what there is to say)."""
        self._say(f"running rank {rank}")
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE)
        )
        try:
            return case.run(rank)
        except SpmdirError as error:
            return "rejected", error.message
        except Own:
            return "rejected", "an exception of its own"
        except Exception as error:
            return "raw", f"{type(error).__name__}: {error}"
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    from tests.fuzz import rank_processes

    serve(rank_processes.Rank)  # whose `Own` is that which cases raise
