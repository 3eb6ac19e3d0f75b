"""The search of `spmd-reduce`: deletions and smaller numbers are kept while the program is still of interest.

Deletions are tried in halves, quarters, … of each list (delta debugging), so that a program of n ops of which few
matter takes about log n tries for each op that stays. All steps are repeated until none changes anything.
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
from spmdir.tools.reducer_steps import STEPS, Deletion, smaller


@attrs.frozen
class TrialProgram:
    """A program, and the arguments of the tool that is run on it; none where a command tests it."""

    text: str
    arguments: tuple[str, ...] = ()


@attrs.frozen
class ReducedProgram:
    """What is left.

    Attributes:
        probes: how many candidates were tested.
        finished: whether nothing more can be taken away; False if time was up.
    """

    candidate: TrialProgram
    probes: int
    finished: bool


_ENTRY = re.compile(r"(?:[^,{}]|\{[^{}]*\})+")
"""An entry of a list, as `a{x=1,2}` of `a{x=1,2},b`."""


class _TimeIsUp(Exception):
    pass


@attrs.define
class _Search:
    current: TrialProgram
    is_interesting: Callable[[TrialProgram], bool]
    verified: bool
    deadline: float
    seen: set[TrialProgram] = attrs.field(factory=set)
    probes: int = 0

    def accept(self, candidate: TrialProgram) -> bool:
        """Return whether `candidate` is valid and of interest; it is the current one from then on."""
        if candidate in self.seen:
            return False
        self.seen.add(candidate)
        try:
            ir.parse(candidate.text, verify_module=self.verified)
        except SpmdirError:
            return False
        if time.monotonic() > self.deadline:
            raise _TimeIsUp
        self.probes += 1
        if not self.is_interesting(candidate):
            return False
        self.current = candidate
        return True

    def accept_text(self, text: str) -> bool:
        return self.accept(attrs.evolve(self.current, text=text))

    def delete(self, step: Callable[[ModuleOp], list[Deletion]]) -> None:
        """Delete what can be deleted of what `step` lists, many at once first."""
        size = len(step(self.module()))
        while size:
            start = 0
            while True:
                module = self.module()
                chosen = step(module)[start : start + size]
                if not chosen:
                    break
                if not self.accept_text(_deleted(module, chosen)):
                    start += size
            size //= 2

    def module(self) -> ModuleOp:
        return ir.parse(self.current.text, verify_module=self.verified)

    def shorten_arguments(self) -> None:
        """Drop arguments of the tool, such as passes, and entries of lists in them; the last one first."""
        for index in range(len(self.current.arguments) - 1, 0, -1):
            given = self.current.arguments
            if self.accept(attrs.evolve(self.current, arguments=(*given[:index], *given[index + 1 :]))):
                continue
            entries = _ENTRY.findall(given[index])
            for entry in reversed(range(len(entries))):
                fewer = [*entries[:entry], *entries[entry + 1 :]]
                shorter = (*given[:index], ",".join(fewer), *given[index + 1 :])
                if fewer and self.accept(attrs.evolve(self.current, arguments=shorter)):
                    entries = fewer

    def run(self) -> None:
        before = None
        while before != self.current:
            before = self.current
            self.shorten_arguments()
            for step in STEPS:
                self.delete(step)
            for number in range(len(smaller(self.current.text))):
                # The text has changed, and equal sizes may have become one.
                for texts in smaller(self.current.text)[number : number + 1]:
                    any(map(self.accept_text, texts()))


def _deleted(module: ModuleOp, deletions: list[Deletion]) -> str:
    """Return the text of `module` without what is deleted; empty if that cannot be taken away."""
    try:
        for deletion in deletions:
            deletion()
        return ir.print_ir(module)
    except (SpmdirError, VerifyException, ValueError, LookupError):
        return ""


def reduce(
    candidate: TrialProgram, is_interesting: Callable[[TrialProgram], bool], timeout: float, filename: str = "<text>"
) -> ReducedProgram:
    """Return the least form of `candidate` that is found, each try of which reads, verifies and is of interest.

    Args:
        is_interesting: whether a candidate still shows what is looked for; called with valid candidates alone.
        timeout: seconds, after which what was found so far is returned.

    Raises:
        SpmdirError: the candidate does not parse, or is not of interest as spmdir prints it.
    """
    module = ir.parse(candidate.text, filename, verify_module=False)
    try:
        ir.verify(module)
        verified = True
    except SpmdirError:
        verified = False  # that may be what is looked for
    start = attrs.evolve(candidate, text=ir.print_ir(module))
    if not is_interesting(start):
        raise SpmdirError(
            f"{filename}: the program, as spmdir prints it, does not pass the test; expected one that does"
        )
    search = _Search(start, is_interesting, verified, time.monotonic() + timeout)
    try:
        search.run()
    except _TimeIsUp:
        return ReducedProgram(search.current, search.probes, False)
    return ReducedProgram(search.current, search.probes, True)
