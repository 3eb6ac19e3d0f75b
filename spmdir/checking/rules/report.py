"""What checking rules found, by op and by family, as values, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import attrs

from spmdir.core.html_text import ShownAsText

COLUMNS = ("samples", "strategies", "sound", "unsound", "missing")


@attrs.frozen
class Fault:
    """A run that went wrong: the sample and the strategy as text, the ranks (`3`, `2 x 2`), and what is wrong."""

    sample: str
    strategy: str
    ranks: str
    fault: str


@attrs.frozen
class Missing:
    """A strategy that gives the right result and that the rule does not have.

    Attributes:
        strategy: operand placements and one choice of result placements, as text.
        samples: how many samples it was right for.
        sample: one of them.
        reason: why the rule leaves it out; None if no reason is stated.
    """

    strategy: str
    samples: int
    sample: str
    reason: str | None


@attrs.frozen
class OpReport:
    """What checking one op found.

    Attributes:
        op, family: the family is the name of the file that has the op's rule.
        samples: how many calls were tried.
        sound, faulty: how many strategies were right in all runs, and wrong in some, added up over the samples.
        unsound: the runs that went wrong; a strategy may be wrong on several numbers of ranks, and for several inputs.
        missing: right strategies that the rule does not have.
        notes: what could not be tried and why.
        crash: how the process that ran the op died; None if it did not.
        unchecked: strategies written as text that no sample is a call of, without a reason.
        reason: why the op cannot be run, as its rule says.
    """

    op: str
    family: str
    samples: int = 0
    sound: int = 0
    faulty: int = 0
    unsound: tuple[Fault, ...] = ()
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    crash: str | None = None
    unchecked: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def strategies(self) -> int:
        """Return how many strategies were run."""
        return self.sound + self.faulty

    @property
    def unexplained(self) -> tuple[Missing, ...]:
        """Return the missing strategies without a reason."""
        return tuple(m for m in self.missing if m.reason is None)

    @property
    def summary(self) -> str:
        """Return the figures of COLUMNS in words."""
        return ", ".join(f"{count} {name}" for name, count in zip(COLUMNS, self.counts, strict=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the figures of COLUMNS."""
        return self.samples, self.strategies, self.sound, self.faulty, len(self.unexplained)


@attrs.frozen
class RuleReport(ShownAsText):
    """What checking rules found.

    Attributes:
        ops: one report an op, in the order of the rule files.
        notes: what could not be tried at all and why.
    """

    ops: tuple[OpReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Return whether no strategy is wrong, no op killed its process, and each op and strategy was run.

        What the file gives a reason for need not be run.
        """
        return not self.untried and not any(op.unsound or op.crash or op.unchecked for op in self.ops)

    @property
    def untried(self) -> tuple[str, ...]:
        """Return the ops of which no call was run, without a reason; all of them if not one strategy was."""
        some = any(op.strategies for op in self.ops)
        return tuple(op.op for op in self.ops if not op.crash and not op.reason and not (some and op.samples))

    def totals(self) -> dict[str, tuple[int, ...]]:
        """Return family → the sums of its ops' COLUMNS; last, "total"."""
        sums: dict[str, tuple[int, ...]] = {}
        for op in self.ops:
            for name in (op.family, "total"):
                sums[name] = tuple(map(sum, zip(sums.pop(name, (0,) * len(COLUMNS)), op.counts, strict=True)))
        return sums

    def table(self) -> str:
        """Return a line an op and a family, then what is wrong, what is missing and what could not be tried."""
        rows = [("op", *COLUMNS)]
        rows += [(op.op, *map(str, op.counts)) for op in self.ops]
        rows += [(name, *map(str, counts)) for name, counts in self.totals().items()]
        return "\n".join([*_aligned(rows), *self._details()]) + "\n"

    def __str__(self) -> str:
        return self.table().rstrip("\n")

    def _details(self) -> Iterable[str]:
        for op in self.ops:
            if op.crash:
                yield f"{op.op}: crash: {op.crash}"
            for fault in op.unsound:
                yield f"{op.op}: unsound on {fault.ranks} ranks: {fault.strategy}: {fault.fault}; {fault.sample}"
            for missing in op.unexplained:
                times = f"{missing.samples} of {op.samples} samples"
                yield f"{op.op}: missing: {missing.strategy}: right in {times}, such as {missing.sample}"
            for text in op.unchecked:
                yield f"{op.op}: not checked, since no sample is a call of it: {text}; --samples adds calls"
            if op.reason and not op.samples:
                yield f"{op.op}: not checked: {op.reason}"
        if self.untried:
            yield f"nothing was run for {', '.join(self.untried)}; --samples adds calls"
        for op in self.ops:
            yield from (f"{op.op}: note: {note}" for note in op.notes)
        yield from (f"note: {note}" for note in self.notes)

    def json(self) -> str:
        """Return everything as JSON."""
        ops = [attrs.asdict(op) | {"strategies": op.strategies, "unsound": _dicts(op.unsound)} for op in self.ops]
        totals = {name: dict(zip(COLUMNS, counts, strict=True)) for name, counts in self.totals().items()}
        return json.dumps({"ops": ops, "totals": totals, "notes": self.notes}, indent=1) + "\n"


def _dicts(faults: Sequence[Fault]) -> list[dict[str, str]]:
    return [attrs.asdict(fault) for fault in faults]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
