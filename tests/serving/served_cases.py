"""What ranks of the tests of served models do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import torch

import spmdir
import spmdir.serving
from spmdir.serving.sampling_settings import Sampling
from spmdir.serving.scheduler import DECODE
from tests.serving.models import make_model

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [8]]
COUNTS = [6, 9, 3, 7]
"""The number of new tokens of each prompt. The longest prompt is prefilled in two parts, and two prompts wait."""

SAMPLINGS = [Sampling(1.5, seed=3), Sampling(), Sampling(0.8, top_k=5, seed=4), Sampling(2, top_p=0.01, seed=5)]
VOCABULARY = 1009
"""A prime number, so ranks have different parts."""


def generate(
    rank: int, name: str, dtype: torch.dtype, axes: dict[str, int], plan: dict[str, str], pages: int | None
) -> dict[str, Any]:
    """Return the tokens of a served model, the error of a request that is too long, and the program of `decode`."""
    mesh = spmdir.Mesh(axes)
    model = make_model(name, dtype, vocab_size=VOCABULARY)
    sizes = {"batch": 2, "max_length": 24, "prompt_lengths": [4, 8], "max_top_k": 8, "pages": pages, "page_rows": 4}
    served = spmdir.serving.serve(model, mesh, plan, **sizes, pipeline=None)  # type: ignore[arg-type]
    prompts = PROMPTS if rank == 0 else [[0]]  # those of the first rank are used
    tokens = served.generate(prompts, COUNTS if rank == 0 else 1)
    try:
        served.generate([[1] * 20], 9)
        error = ""
    except spmdir.SpmdirError as failure:
        error = str(failure)
    again = served.generate(PROMPTS[:1], COUNTS[0], stop=tokens[0][1:2])
    return {
        "tokens": tokens,
        "error": error,
        "again": again,
        "drawn": served.generate(PROMPTS, COUNTS, sampling=SAMPLINGS),
        "text": spmdir.print_ir(served.rank_module(DECODE)),
        "streamed": _stream(served) if rank == 0 else served.run(),
    }


def _stream(served: spmdir.serving.Served) -> list[list[int]]:
    """Run the model in this thread, and stream the tokens of each prompt to another thread, as a server does."""
    queue = served.queue()
    with ThreadPoolExecutor(len(PROMPTS)) as readers:

        def read(prompt: list[int], count: int) -> list[int]:
            return [*queue.submit(prompt, count).stream(timeout=300)]

        results = [readers.submit(read, *request) for request in zip(PROMPTS, COUNTS, strict=True)]
        closing = Thread(target=lambda: ([result.result() for result in results], queue.close()))
        closing.start()
        served.run(queue)
        closing.join()
    return [result.result() for result in results]
