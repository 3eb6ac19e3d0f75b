"""What `spmd-opt` does around passes: it prints the IR, takes the time, and keeps what reproduces a failure."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spmdir.core.errors import SpmdirError
from spmdir.pipeline.trials import TrialRun, total_by_steps
from spmdir.tools.command import write_text
from spmdir.tools.reproducer import reproducer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.pipeline.pipeline import After, Step


class Stopwatch:
    """Prints to stderr how long each stage took, if it is on."""

    def __init__(self, on: bool):
        self.on = on
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Print the seconds since the last lap or restart."""
        if self.on:
            print(f"{time.perf_counter() - self._last:10.4f} s  {stage}", file=sys.stderr)
            self.restart()

    def of_these(self, seconds: float, what: str) -> None:
        """Print a part of the stage that was printed last."""
        if self.on:
            print(f"{seconds:10.4f} s  of these, {what}", file=sys.stderr)

    def restart(self) -> None:
        """Leave the time since the last lap out of account."""
        self._last = time.perf_counter()


class Instrumentation:
    """What is done around the passes of one run.

    Attributes:
        steps: the passes that are to run.
        done: how many of them have.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        options: Namespace,
        watch: Stopwatch,
        text: Callable[[ModuleOp], str],
        trials: list[TrialRun],
    ):
        self.steps, self.done, self._trials = steps, 0, trials
        self._options, self._watch, self._text = options, watch, text
        self._before = "" if options.reproducer or options.print_ir_after_change else None

    @contextmanager
    def around(self, module: ModuleOp) -> Iterator[After]:
        """Yield what `run_passes` is to call after each pass; what raises inside leaves a reproducer."""
        self._prepare(lambda: module, None)
        try:
            yield self._after
        except Exception:
            if self._options.reproducer and self._before is not None and self.done < len(self.steps):
                self._write_reproducer(self._options.reproducer, self._before)
            raise

    def _write_reproducer(self, path: str, text: str) -> None:
        """Write a reproducer; where that fails, say so beside the error of the pass."""
        try:
            write_text(path, reproducer(self.steps[self.done], text))
        except SpmdirError as error:
            print(f"note: no reproducer: {error}", file=sys.stderr)
        else:
            print(f"note: a reproducer is in '{path}'", file=sys.stderr)

    def _after(self, name: str, current: Callable[[], ModuleOp]) -> None:
        self._watch.lap(name)
        for steps, (count, seconds) in total_by_steps(self._trials).items():
            self._watch.of_these(seconds, f"{count} trial runs of {steps}")
        self._trials.clear()
        self.done += 1
        text = self._text(current()) if self._before is not None else None
        changed = text is None or text != self._before
        options = self._options
        wanted = _names(name, options.print_ir_after) or options.print_ir_after_all
        if options.print_ir_after_change:
            wanted = changed and (wanted or not options.print_ir_after)
        if wanted:
            self._print(f"After {name}", current, text)
        self._prepare(current, text)

    def _prepare(self, current: Callable[[], ModuleOp], text: str | None) -> None:
        """Print and keep what the next pass begins with."""
        if self.done < len(self.steps):
            name = self.steps[self.done].name
            if self._options.print_ir_before_all or _names(name, self._options.print_ir_before):
                self._print(f"Before {name}", current, text)
            if self._before is not None:
                self._before = text or self._text(current())
        self._watch.restart()

    def _print(self, when: str, current: Callable[[], ModuleOp], text: str | None) -> None:
        print(f"// -----// IR Dump {when} //----- //", text or self._text(current()), sep="\n", file=sys.stderr)


def _names(name: str, lists: Collection[str]) -> bool:
    """Return whether `name` is in one of the comma-separated `lists`."""
    return any(name in part.split(",") for part in lists)
