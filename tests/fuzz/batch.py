"""Runs a batch of random cases of one kind, and shrinks the first that fails."""

from __future__ import annotations

import re
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition

import tests.hypothesis_profile  # noqa: F401  # loads the profile, for workers that pytest does not start
from spmdir.core.errors import CheckError, SpmdirError

SHRINKS = 200
"""How many cases are run to shrink one that fails."""


class Wrong(Exception):
    """Numbers that differ from those of one device, or an answer that a tool may not give."""


class Hang(BaseException):
    """No answer within the limit; no `except Exception` of what is run can swallow it."""


@attrs.frozen
class Kind:
    """A kind of fuzzing.

    Attributes:
        cases: draws a case; its `str` is what a person needs to see it fail again.
        check: runs a case; returns None, or why it is counted as rejected, and raises Wrong, or a SpmdirError for a
            case that is rejected, too.
        examples: cases in a batch.
        seconds: the limit for one case.
        share: of the time that all kinds have.
    """

    name: str
    cases: st.SearchStrategy[Any]
    check: Callable[[Any], str | None]
    examples: int
    seconds: int = 10
    share: float = 1.0


@attrs.frozen
class Failure:
    """A case that failed, shrunk; `what` is "wrong", "raw" or "hang"."""

    kind: str
    seed: int
    what: str
    message: str
    case: str

    def __str__(self) -> str:
        case = "\n".join(f"    {line}" for line in self.case.splitlines())
        again = f"python -m tests.fuzz --kind {self.kind} --replay {self.seed}"
        return f"{self.what}: {self.kind}, seed {self.seed}: {self.message}\n{case}\n  again: {again}"


@attrs.frozen
class Batch:
    """What came of a batch. Cases that ran while a failure was being shrunk are not counted.

    Attributes:
        rejected: the shape of a message → how often it came.
        examples: the shape of a message → a case that was rejected so.
    """

    kind: str
    seed: int
    right: int
    rejected: dict[str, int]
    failures: tuple[Failure, ...] = ()
    examples: dict[str, str] = attrs.field(factory=dict)

    @property
    def tried(self) -> int:
        return self.right + sum(self.rejected.values()) + len(self.failures)


def run_batch(kind: Kind, seed: int, examples: int | None = None) -> Batch:
    """Run the cases that `seed` gives, up to the first that fails."""
    rejected: Counter[str] = Counter()
    counts = {"right": 0, "shrinks": 0}
    failures: list[Failure] = []
    rejections: dict[str, str] = {}

    def failed(what: str, error: BaseException, case: Any) -> None:
        failures[:] = [Failure(kind.name, seed, what, _message(error), str(case))]

    @seeded(seed)
    @settings(
        max_examples=examples or kind.examples,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(kind.cases)
    def run(case: Any) -> None:
        if failures:
            counts["shrinks"] += 1
            if counts["shrinks"] > SHRINKS and str(case) != failures[0].case:
                return
        try:
            with limit(kind.seconds), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reason = kind.check(case)
        except CheckError as error:
            failed("wrong", error, case)
            raise
        except SpmdirError as error:
            reason = error.message
        except Hang as error:
            failed("hang", error, case)
            raise
        except Exception as error:
            failed("wrong" if isinstance(error, Wrong) else "raw", error, case)
            raise
        if failures:
            return
        if reason is None:
            counts["right"] += 1
        else:
            rejected[shape_of(reason)] += 1
            rejections.setdefault(shape_of(reason), f"{reason}\n{case}")

    try:
        run()
    except FlakyStrategyDefinition:
        # A statement of the case gives other values each time, as of memory that nothing has filled.
        rejected["the case is not drawn alike twice"] += not failures
    except (Exception, Hang) as error:
        if not failures:
            failed("raw", error, "while the case was drawn")
    return Batch(kind.name, seed, counts["right"], dict(rejected), tuple(failures), rejections)


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise Hang in the main thread when the body takes more processor time, so that a busy machine changes nothing.

    What waits without computing is ended from outside, with its process.
    """

    def expired(number: int, frame: Any) -> None:
        where = "".join(traceback.format_stack(frame, limit=3))
        raise Hang(f"no answer after {seconds} s, at\n{where}")

    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)  # again, for callbacks of the collector swallow exceptions
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def shape_of(message: str) -> str:
    """Return a message without its names and numbers, so that alike ones count together."""
    line = message.partition("\n")[0]
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", line)
    line = re.sub(r"<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)", "…", line)
    line = re.sub(r"%\w+|\d+", "N", line)
    return line[:110]


def _message(error: BaseException) -> str:
    if isinstance(error, (Wrong, Hang)):
        return str(error)
    inner = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({inner.filename}:{inner.lineno})"[:2000]
