"""Instrumentation of passes in `spmd-opt`: it prints IR and times, and writes a reproducer for a failure."""

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
    """Prints the wall time of each phase of the tool to stderr, if `is_on`."""

    def __init__(self, is_on: bool):
        self.is_on = is_on
        self._last_lap = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Print the seconds since the last lap or restart."""
        if self.is_on:
            print(f"{time.perf_counter() - self._last_lap:10.4f} s  {stage}", file=sys.stderr)
            self.restart()

    def print_part(self, seconds: float, part: str) -> None:
        """Print a part of the phase that was printed last."""
        if self.is_on:
            print(f"{seconds:10.4f} s  of these, {part}", file=sys.stderr)

    def restart(self) -> None:
        """Ignore the time since the last lap."""
        self._last_lap = time.perf_counter()


class Instrumentation:
    """Callbacks before and after the passes of one run.

    Attributes:
        steps: the passes of the run.
        finished_count: the number of passes that have ended.
        _text_before: the IR before the present pass, as text; None if no option needs it.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        options: Namespace,
        watch: Stopwatch,
        text: Callable[[ModuleOp], str],
        trials: list[TrialRun],
    ):
        """Start before the first pass.

        Args:
            options: the options of `spmd-opt`, such as `print_ir_after`.
            watch: prints the time of each pass.
            text: returns the text of the IR.
            trials: receives the passes that `propagate` runs on trial, with their times. Printed and cleared after each
                pass.
        """
        self.steps, self.finished_count, self._trials = steps, 0, trials
        self._options, self._watch, self._text = options, watch, text
        self._text_before = "" if options.reproducer or options.print_ir_after_change else None

    @contextmanager
    def around(self, module: ModuleOp) -> Iterator[After]:
        """Yield the `after` callback of `run_passes`. An exception in the context writes a reproducer."""
        self._prepare(lambda: module, None)
        try:
            yield self._after
        except Exception:
            if self._options.reproducer and self._text_before is not None and self.finished_count < len(self.steps):
                self._write_reproducer(self._options.reproducer, self._text_before)
            raise

    def _write_reproducer(self, path: str, text: str) -> None:
        """Write a reproducer. If that fails, print a note in addition to the error of the pass."""
        try:
            write_text(path, reproducer(self.steps[self.finished_count], text))
        except SpmdirError as error:
            print(f"note: no reproducer: {error}", file=sys.stderr)
        else:
            print(f"note: a reproducer is in '{path}'", file=sys.stderr)

    def _after(self, name: str, current: Callable[[], ModuleOp]) -> None:
        """Print the time of a pass that has ended, and the IR if it is requested."""
        self._watch.lap(name)
        for steps, (count, seconds) in total_by_steps(self._trials).items():
            self._watch.print_part(seconds, f"{count} trial runs of {steps}")
        self._trials.clear()
        self.finished_count += 1
        text = self._text(current()) if self._text_before is not None else None
        has_changed = text is None or text != self._text_before
        options = self._options
        is_printed = _is_listed(name, options.print_ir_after) or options.print_ir_after_all
        if options.print_ir_after_change:
            is_printed = has_changed and (is_printed or not options.print_ir_after)
        if is_printed:
            self._print(f"After {name}", current, text)
        self._prepare(current, text)

    def _prepare(self, current: Callable[[], ModuleOp], text: str | None) -> None:
        """Print the IR before the next pass and store its text, each only if an option requires it.

        Args:
            text: the text of the IR, if it was printed before.
        """
        if self.finished_count < len(self.steps):
            name = self.steps[self.finished_count].name
            if self._options.print_ir_before_all or _is_listed(name, self._options.print_ir_before):
                self._print(f"Before {name}", current, text)
            if self._text_before is not None:
                self._text_before = text or self._text(current())
        self._watch.restart()

    def _print(self, when: str, current: Callable[[], ModuleOp], text: str | None) -> None:
        """Print the IR with a heading as in MLIR; `text` is its text if it was printed before."""
        print(f"// -----// IR Dump {when} //----- //", text or self._text(current()), sep="\n", file=sys.stderr)


def _is_listed(name: str, lists: Collection[str]) -> bool:
    """Return whether `name` is in one of the comma-separated `lists`."""
    return any(name in part.split(",") for part in lists)
