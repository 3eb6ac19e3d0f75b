"""The search of `spmd-reduce`: try deletions and smaller sizes, and keep those that preserve the failure.

Each step lists possible deletions. Halves of the list are tried first, then quarters, and so on (delta debugging:
Zeller and Hildebrandt, 2002). If few of n ops are needed, this takes about log n tries for each of them. All steps are
repeated until none changes the program.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.tools.reducer_steps import STEPS, Deletion, size_replacements


@attrs.frozen
class TrialProgram:
    """A program, and the arguments of the tool that runs on it. There are none if a shell command tests it."""

    text: str
    arguments: tuple[str, ...] = ()


@attrs.frozen
class ReducedProgram:
    """The result of a reduction.

    Attributes:
        probes: the number of tested candidates.
        finished: whether no further deletion is possible; False after a timeout.
    """

    candidate: TrialProgram
    probes: int
    finished: bool


_ENTRY = re.compile(r"(?:[^,{}]|\{[^{}]*\})+")
"""An entry of a comma-separated list, such as `a{x=1,2}` in `a{x=1,2},b`."""


class _Timeout(Exception):
    """The time for the search is over."""


@attrs.define
class _Search:
    """The state of a reduction.

    Attributes:
        current: the smallest program so far that shows the failure.
        is_interesting: whether a program shows the failure.
        verifies: whether candidates must pass verification.
        deadline: the time at which the search stops, as of `time.monotonic`.
        seen: the candidates that were tried.
        probes: the number of candidates that were tested.
    """

    current: TrialProgram
    is_interesting: Callable[[TrialProgram], bool]
    verifies: bool
    deadline: float
    seen: set[TrialProgram] = attrs.field(factory=set)
    probes: int = 0

    def accept(self, candidate: TrialProgram) -> bool:
        """Return whether `candidate` is valid and shows the failure. If so, it becomes the current program."""
        if candidate in self.seen:
            return False
        self.seen.add(candidate)
        try:
            ir.parse(candidate.text, verify_module=self.verifies)
        except SpmdirError:
            return False
        if time.monotonic() > self.deadline:
            raise _Timeout
        self.probes += 1
        if not self.is_interesting(candidate):
            return False
        self.current = candidate
        return True

    def accept_text(self, text: str) -> bool:
        """Call `accept` for another text with the current arguments."""
        return self.accept(attrs.evolve(self.current, text=text))

    def delete(self, step: Callable[[ModuleOp], list[Deletion]]) -> None:
        """Apply the deletions that `step` returns, first all together, then in chunks of half the size, and so on.

        A chunk is kept deleted if the program still shows the failure.
        """
        chunk_size = len(step(self.module()))
        while chunk_size:
            start = 0
            while True:
                module = self.module()
                deletions = step(module)[start : start + chunk_size]
                if not deletions:
                    break
                # After a deletion, other parts are at the same positions.
                if not self.accept_text(_text_without(module, deletions)):
                    start += chunk_size
            chunk_size //= 2

    def module(self) -> ModuleOp:
        """Return the current program, parsed again, so that deletions cannot change it."""
        return ir.parse(self.current.text, verify_module=self.verifies)

    def shorten_arguments(self) -> None:
        """Remove arguments of the tool, such as passes, and entries of lists in them, from the last to the first."""
        for index in range(len(self.current.arguments) - 1, 0, -1):
            arguments = self.current.arguments
            if self.accept(attrs.evolve(self.current, arguments=(*arguments[:index], *arguments[index + 1 :]))):
                continue
            entries = _ENTRY.findall(arguments[index])
            for index_of_entry in reversed(range(len(entries))):
                fewer = [*entries[:index_of_entry], *entries[index_of_entry + 1 :]]
                shorter = (*arguments[:index], ",".join(fewer), *arguments[index + 1 :])
                if fewer and self.accept(attrs.evolve(self.current, arguments=shorter)):
                    entries = fewer

    def run(self) -> None:
        """Repeat all steps until none changes the program."""
        previous = None
        while previous != self.current:
            previous = self.current
            self.shorten_arguments()
            for step in STEPS:
                self.delete(step)
            for number in range(len(size_replacements(self.current.text))):
                # An accepted text may have fewer sizes than before, because equal sizes are one entry.
                for smaller_texts in size_replacements(self.current.text)[number : number + 1]:
                    any(map(self.accept_text, smaller_texts()))  # stops at the first accepted text


def _text_without(module: ModuleOp, deletions: list[Deletion]) -> str:
    """Apply deletions to `module` and return its text, or an empty text if that fails."""
    try:
        for deletion in deletions:
            deletion()
        return ir.print_ir(module)
    except (SpmdirError, VerifyException, ValueError, LookupError):
        return ""


def reduce(
    candidate: TrialProgram, is_interesting: Callable[[TrialProgram], bool], timeout: float, filename: str = "<text>"
) -> ReducedProgram:
    """Reduce a program for as long as it shows the failure.

    If `candidate` verifies, so does each smaller program.

    Args:
        is_interesting: whether a candidate shows the failure. It is called only with valid candidates.
        timeout: seconds. Afterwards, the smallest program so far is returned.

    Raises:
        SpmdirError: the candidate does not parse, or does not show the failure after it was parsed and printed.
    """
    module = ir.parse(candidate.text, filename, verify_module=False)
    try:
        ir.verify(module)
        verifies = True
    except SpmdirError:
        verifies = False  # this may be the failure
    start = attrs.evolve(candidate, text=ir.print_ir(module))
    if not is_interesting(start):
        raise SpmdirError(
            f"{filename}: the program does not show the failure after it was parsed and printed; expected "
            "one that does: correct --test or the --expect options"
        )
    search = _Search(start, is_interesting, verifies, time.monotonic() + timeout)
    try:
        search.run()
    except _Timeout:
        return ReducedProgram(search.current, search.probes, False)
    return ReducedProgram(search.current, search.probes, True)
