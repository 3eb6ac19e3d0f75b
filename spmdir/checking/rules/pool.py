"""Run jobs in worker processes, because native kernels may end their process on unusual shapes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError, raise_all

RunJobs = Callable[[Sequence[Any], float], Iterator[Any]]
"""(jobs, time limit of each in seconds) → the answers, in the order of the jobs."""


@attrs.frozen
class Death:
    """The end of a job without an answer.

    Attributes:
        how: the signal, exit status, time limit or exception that ended it.
        stage: its last reported step.
        late: whether it exceeded the time limit.
    """

    how: str
    stage: str
    late: bool = False

    def __str__(self) -> str:
        return f"{self.how} while {self.stage}" if self.stage else self.how


class Worker:
    """A process that answers jobs. After it has ended, the next job starts a new process."""

    def __init__(self, setup: Any, module: str = "spmdir.checking.rules.worker"):
        self._setup, self._module = setup, module
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, job: Any, timeout: float) -> Any:
        """Return the answer to `job`, or its Death. If the process ends before the job begins, try once more.

        Raises:
            SpmdirError: the job raised it.
        """
        if self._closed:
            return Death("interrupted", "")
        answer = self._run(job, timeout)
        # Without a stage, the process ended before it reported a step of this job.
        if isinstance(answer, Death) and not answer.stage and not answer.late and not self._closed:
            answer = self._run(job, timeout)
        return answer

    def _run(self, job: Any, timeout: float) -> Any:
        """Send a job to the process, and return its answer or Death.

        The process sends messages (kind, value). A `stage` names the step that begins, such as `running mm`. The others
        end the job: `answer`, `rejected` with (message, location) pairs, and `failure` with a text.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        has_expired = threading.Event()

        def end_process() -> None:
            has_expired.set()
            process.kill()

        timer = threading.Timer(timeout, end_process)
        timer.start()
        stage = ""
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            while True:
                kind, value = pickle.load(process.stdout)
                if kind == "rejected":
                    raise_all([SpmdirError(message, location) for message, location in value])
                if kind == "answer":
                    return value
                if kind == "failure":
                    return Death(value, stage)
                stage = value
        except (EOFError, OSError, pickle.UnpicklingError):
            self.stop()
            if has_expired.is_set():
                return Death(f"no answer within {timeout:g} s", stage, late=True)
            return Death(_exit_reason(process), stage)
        finally:
            timer.cancel()

    def stop(self) -> None:
        """End the process, if it runs."""
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def close(self) -> None:
        """End the process and start no other one. Jobs that still wait for an answer get a Death."""
        self._closed = True
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process, and send it the setup."""
        root = str(Path(__file__).parents[3])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None
        pickle.dump(self._setup, process.stdin)
        return process


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process to end and return why it did, for messages."""
    status = process.wait()
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


@contextmanager
def pool(setup: Any, count: int, module: str = "spmdir.checking.rules.worker") -> Iterator[RunJobs]:
    """Yield a function from (jobs, time limit of each in seconds) to their answers, which `count` processes compute.

    A process starts with its first job. At the end of the context, all processes end, and jobs that wait are cancelled.

    Args:
        setup: the first object that each process receives.
        module: the module that each process runs.
    """
    workers = [Worker(setup, module) for _ in range(count)]
    idle = list(workers)

    def ask(job: Any, timeout: float) -> Any:
        """Return the answer of an idle worker. There are as many workers as threads, so one is idle."""
        worker = idle.pop()
        try:
            return worker.ask(job, timeout)
        finally:
            idle.append(worker)

    with ThreadPoolExecutor(count) as threads:
        try:
            yield lambda jobs, timeout: threads.map(ask, jobs, [timeout] * len(jobs))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()
