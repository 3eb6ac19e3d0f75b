"""Send random requests to `examples/server.py` under torchrun, and kill or stop a rank while they run.

Run with `python -m tests.serving.load --requests 200`. Each request must end with the tokens of one
device or with an error, within the timeout of the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[2]
VOCABULARY = 128

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@attrs.define
class Running:
    """A server that runs.

    Attributes:
        process: the process of torchrun.
        url: its address.
        ranks: rank → number of its process.
    """

    process: subprocess.Popen[str]
    url: str
    ranks: dict[int, int]

    def send(self, body: Any, timeout: float = 600) -> tuple[int, list[Any]]:
        """Return the status and the JSON values of the answer to a request; status 0 if the connection breaks."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines: list[Any] = []
        try:
            with urllib.request.urlopen(f"{self.url}/generate", data, timeout) as answer:
                for line in answer:
                    lines.append(json.loads(line))
                return answer.status, lines
        except urllib.error.HTTPError as error:
            return error.code, [json.loads(error.read())]
        except (OSError, ValueError) as error:
            return 0, [*lines, {"error": str(error)}]


@contextmanager
def running_server(ranks: int = 2, **options: Any) -> Iterator[Running]:
    """Start the example server, and end it after the body."""
    arguments = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    process = subprocess.Popen(
        [*_TORCHRUN, str(ranks), str(ROOT / "examples" / "server.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        numbers: dict[int, int] = {}
        for line in process.stdout:
            numbers |= {int(rank): int(number) for rank, number in re.findall(r"rank (\d+): process (\d+)", line)}
            if line.startswith("listening on "):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield Running(process, line.split()[-1], numbers)
                break
        else:
            raise AssertionError(f"the server ended with exit code {process.wait()}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for number in numbers.values():  # ranks are in groups of their own
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def random_requests(count: int, seed: int, max_length: int = 128) -> list[dict[str, Any]]:
    """Return requests of random lengths, some of which are drawn."""
    numbers = random.Random(seed)
    requests = []
    for index in range(count):
        prompt = [numbers.randrange(VOCABULARY) for _ in range(numbers.randint(1, max_length // 3))]
        request: dict[str, Any] = {"prompt": prompt, "max_new_tokens": numbers.randint(1, max_length // 3)}
        if numbers.random() < 0.5:
            request |= {"temperature": 0.9, "top_k": numbers.choice([0, 5]), "seed": index}
        requests.append(request)
    return requests


def send_all(
    server: Running, requests: Sequence[dict[str, Any]], fault: int | None = None, after: int = 0
) -> list[tuple[int, list[Any]]]:
    """Return the answers to requests that are sent at one time.

    Args:
        fault: the signal that the last rank gets; None for no signal.
        after: the number of answers before the signal.
    """
    answers = 0
    is_time = threading.Event()

    def send(request: dict[str, Any]) -> tuple[int, list[Any]]:
        nonlocal answers
        answer = server.send(request)
        answers += 1
        if answers >= after:
            is_time.set()
        return answer

    def signal_last() -> None:
        is_time.wait()
        os.kill(server.ranks[max(server.ranks)], fault or 0)

    if fault is not None:
        threading.Thread(target=signal_last, daemon=True).start()
    with ThreadPoolExecutor(len(requests)) as clients:
        return list(clients.map(send, requests))


def kind_of(request: dict[str, Any], answer: tuple[int, list[Any]]) -> str:
    """Return whether an answer has all tokens or an error; raise AssertionError if it has neither."""
    status, lines = answer
    assert lines and isinstance(lines[-1], dict), answer
    if lines[-1] == {"done": True}:
        assert status == 200 and len(lines) == request["max_new_tokens"] + 1, answer
        return "tokens"
    assert lines[-1]["error"], answer
    return "error"


def main() -> None:
    """Run the load without a fault, with a killed rank, and with a stopped rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    requests = random_requests(options.requests, options.seed)
    for name, fault in (("no fault", None), ("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        with running_server(timeout=options.timeout) as server:
            begin = time.monotonic()
            answers = send_all(server, requests, fault, options.requests // 3)
            seconds = time.monotonic() - begin
            kinds = Counter(kind_of(*pair) for pair in zip(requests, answers, strict=True))
            tokens = sum(len(lines) - 1 for _, lines in answers)
            print(f"{name}: {dict(kinds)}, {tokens} tokens in {seconds:.1f} s", flush=True)
            assert fault is not None or kinds == {"tokens": len(requests)}


if __name__ == "__main__":
    main()
