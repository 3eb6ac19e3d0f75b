"""Reports of checked rules by op and by family, as values, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import attrs

from spmdir.core.html_text import ShownAsText

COLUMNS = ("samples", "strategies", "sound", "unsound", "missing")


@attrs.frozen
class Fault:
    """An unsound run: the sample and the strategy as text, the ranks (`3`, `2 x 2`), and the difference."""

    sample: str
    strategy: str
    ranks: str
    fault: str


@attrs.frozen
class MissingStrategy:
    """A sound strategy that the rule does not have.

    Attributes:
        strategy: the placements of operands and results, as text.
        samples: the number of samples in which it is sound.
        sample: one of these samples.
        reason: the reason in `reasons.toml` why the rule omits it; None if there is none.
    """

    strategy: str
    samples: int
    sample: str
    reason: str | None


@attrs.frozen
class OpReport:
    """The report of one op.

    Attributes:
        op: the name of the op.
        family: the name of the file with its rule.
        samples: the number of calls.
        sound, faulty: the number of strategies that are sound in all runs, and unsound in some, summed over samples.
        unsound: the unsound runs. A strategy may be unsound for several numbers of ranks and several inputs.
        missing: the missing strategies.
        notes: the checks that were not possible, with reasons.
        crash: how the process that ran the op ended; None if it did not end.
        unchecked: the text strategies that apply to no sample and have no reason.
        reason: the reason before its rule why the op cannot be run.
    """

    op: str
    family: str
    samples: int = 0
    sound: int = 0
    faulty: int = 0
    unsound: tuple[Fault, ...] = ()
    missing: tuple[MissingStrategy, ...] = ()
    notes: tuple[str, ...] = ()
    crash: str | None = None
    unchecked: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def strategies(self) -> int:
        """The number of strategies that were run."""
        return self.sound + self.faulty

    @property
    def unexplained(self) -> tuple[MissingStrategy, ...]:
        """The missing strategies without a reason."""
        return tuple(missing for missing in self.missing if missing.reason is None)

    @property
    def summary(self) -> str:
        """The numbers of COLUMNS as text."""
        return ", ".join(f"{count} {name}" for name, count in zip(COLUMNS, self.counts, strict=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of COLUMNS."""
        return self.samples, self.strategies, self.sound, self.faulty, len(self.unexplained)


@attrs.frozen
class RuleReport(ShownAsText):
    """The report of all checked ops.

    Attributes:
        ops: one report for each op, in the order of the rule files.
        notes: the checks of all ops that were not possible, with reasons.
    """

    ops: tuple[OpReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether all strategies are sound, no op ended its process, and all ops and text strategies were run.

        An op or strategy with a reason in its file need not be run.
        """
        return not self.untried and not any(op.unsound or op.crash or op.unchecked for op in self.ops)

    @property
    def untried(self) -> tuple[str, ...]:
        """The ops without a run and without a reason; all ops without a reason if no strategy was run."""
        has_strategies = any(op.strategies for op in self.ops)
        return tuple(op.op for op in self.ops if not op.crash and not op.reason and not (has_strategies and op.samples))

    def totals(self) -> dict[str, tuple[int, ...]]:
        """Return family → the sums of COLUMNS over its ops; the last entry is "total"."""
        sums: dict[str, tuple[int, ...]] = {}
        for op in self.ops:
            for name in (op.family, "total"):
                earlier = sums.pop(name, (0,) * len(COLUMNS))  # removed, so that "total" comes last
                sums[name] = tuple(map(sum, zip(earlier, op.counts, strict=True)))
        return sums

    def table(self) -> str:
        """Return a line for each op and family, then unsound runs, missing strategies and notes."""
        rows = [("op", *COLUMNS)]
        rows += [(op.op, *map(str, op.counts)) for op in self.ops]
        rows += [(name, *map(str, counts)) for name, counts in self.totals().items()]
        return "\n".join([*_aligned(rows), *self._details()]) + "\n"

    def __str__(self) -> str:
        return self.table().rstrip("\n")

    def _details(self) -> Iterable[str]:
        """Yield the lines after the table: crashes, unsound runs, missing strategies and notes."""
        for op in self.ops:
            if op.crash:
                yield f"{op.op}: crash: {op.crash}"
            for fault in op.unsound:
                yield f"{op.op}: unsound on {fault.ranks} ranks: {fault.strategy}: {fault.fault}; {fault.sample}"
            for missing in op.unexplained:
                times = f"{missing.samples} of {op.samples} samples"
                yield f"{op.op}: missing: {missing.strategy}: sound in {times}, such as {missing.sample}"
            for text in op.unchecked:
                yield f"{op.op}: not checked: no sample calls {text}; add calls with --samples"
            if op.reason and not op.samples:
                yield f"{op.op}: not checked: {op.reason}"
        if self.untried:
            yield f"no sample calls {', '.join(self.untried)}; add calls with --samples"
        for op in self.ops:
            yield from (f"{op.op}: note: {note}" for note in op.notes)
        yield from (f"note: {note}" for note in self.notes)

    def json(self) -> str:
        """Return the whole report as JSON."""
        ops = [attrs.asdict(op) | {"strategies": op.strategies, "unsound": _dicts(op.unsound)} for op in self.ops]
        totals = {name: dict(zip(COLUMNS, counts, strict=True)) for name, counts in self.totals().items()}
        return json.dumps({"ops": ops, "totals": totals, "notes": self.notes}, indent=1) + "\n"


def _dicts(faults: Sequence[Fault]) -> list[dict[str, str]]:
    """Return the faults as dicts of their fields, for JSON."""
    return [attrs.asdict(fault) for fault in faults]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]))
    return lines
