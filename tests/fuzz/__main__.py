"""`python -m tests.fuzz --minutes 30`: fuzz on two cores, and print what came of it."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from spmdir.checking.rules.pool import Death, Worker
from tests.fuzz.batch import Batch, Failure
from tests.fuzz.kinds import KINDS

LIMIT = 1200.0
"""Seconds after which a batch is given up that native code keeps from ending; shrinking takes up to 300 of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run batches of the kinds in turn until the time is over; return 1 if one is wrong, raw or hangs."""
    options = _arguments().parse_args(argv)
    if options.replay is not None and not options.kind:
        _arguments().error("--replay needs --kind")
    names = options.kind or list(KINDS)
    if options.replay is not None:
        worker = Worker(None, "tests.fuzz.worker")
        batches = [_ask(worker, options.kind[0], options.replay, options.examples)]
        worker.stop()
        print(*batches[0].failures, sep="\n\n")
    else:
        first = random.SystemRandom().randrange(1_000_000) * 1000 if options.seed is None else options.seed
        print(f"seed {first}: {', '.join(names)}", flush=True)
        batches = _fuzz(names, first, options.minutes * 60, options.processes, options.examples)
    if options.show:
        examples = {reason: case for batch in batches for reason, case in batch.examples.items()}
        print(*(f"\nrejected: {case}" for _, case in sorted(examples.items())), sep="\n")
    print(table(batches))
    return int(any(batch.failures for batch in batches))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="this kind alone; may be repeated")
    parser.add_argument("--seed", type=int, help="of the first batch; the next ones count on from it")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one batch of --kind again")
    parser.add_argument("--show", action="store_true", help="print a case for each reason why cases were rejected")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--examples", type=int, help="cases in a batch")
    return parser


def _fuzz(names: Sequence[str], first: int, seconds: float, processes: int, examples: int | None) -> list[Batch]:
    """Return the batches that fit into the time, each of the kind that is furthest behind its share of it."""
    end, spent, done = time.monotonic() + seconds, dict.fromkeys(names, 0.0), []
    seeds = iter(range(first, sys.maxsize))

    def work(worker: Worker) -> None:
        while time.monotonic() < end:
            name, seed = min(names, key=lambda n: spent[n] / KINDS[n].share), next(seeds)
            spent[name] += 0.01  # so that the other process takes another kind meanwhile
            began = time.monotonic()
            batch = _ask(worker, name, seed, examples)
            spent[name] += time.monotonic() - began
            done.append(batch)
            for failure in batch.failures:
                print(f"\n{failure}\n", flush=True)

    workers = [Worker(None, "tests.fuzz.worker") for _ in range(processes)]
    with ThreadPoolExecutor(processes) as threads:
        try:
            list(threads.map(work, workers))
        finally:
            for worker in workers:
                worker.stop()
    for name in names:
        count = sum(batch.tried for batch in done if batch.kind == name)
        print(f"{name}: {count} in {spent[name]:.0f} s of one core, {count / max(spent[name], 0.01):.1f} a second")
    return done


def _ask(worker: Worker, name: str, seed: int, examples: int | None) -> Batch:
    answer = worker.ask(("batch", name, seed, examples), LIMIT)
    if not isinstance(answer, Death):
        return answer
    what = "hang" if answer.late else "raw"
    return Batch(name, seed, 0, {}, (Failure(name, seed, what, str(answer), "the process ended"),))


def table(batches: Sequence[Batch]) -> str:
    """Kind by kind what was tried, and why what was rejected was."""
    return "\n".join(["kind        tried   right  rejected  wrong   raw  hangs", *_lines(batches)])


def _lines(batches: Sequence[Batch]) -> Iterator[str]:
    reasons: list[str] = []
    for name in dict.fromkeys(batch.kind for batch in batches):
        of_kind = [batch for batch in batches if batch.kind == name]
        rejected = sum((Counter(batch.rejected) for batch in of_kind), Counter())
        what = Counter(failure.what for batch in of_kind for failure in batch.failures)
        tried, right = sum(batch.tried for batch in of_kind), sum(batch.right for batch in of_kind)
        failed = f"{what['wrong']:7}{what['raw']:6}{what['hang']:7}"
        yield f"{name:10}{tried:7}{right:8}{rejected.total():10}{failed}"
        reasons += [f"{name:10}{count:6}  {reason}" for reason, count in rejected.most_common(40)]
    if reasons:
        yield from ("", "rejected", *reasons)


if __name__ == "__main__":
    raise SystemExit(main())
