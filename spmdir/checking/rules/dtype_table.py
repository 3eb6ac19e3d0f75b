"""`python -m spmdir.checking.rules.dtype_table write OP…`: write the element types of ops into their table.

`make op-table` runs it for all ops that have a rule, which takes minutes. An op that kills the process, as some native
kernels do with odd types, is tried on meta tensors alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from spmdir.checking.rules.dtype_fit import fit
from spmdir.checking.rules.dtype_trials import DEVICES, trials
from spmdir.checking.rules.pool import Death, pool
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.worker import serve
from spmdir.core.errors import SpmdirError
from spmdir.rules.element_types import TABLE
from spmdir.rules.rule_set import default

SECONDS = 600
"""The limit for one op."""


class TableSession:
    """A worker that derives the lines of ops from their samples."""

    def __init__(self, setup: None, say: Callable[[str], None]):
        self._say = say
        self._samples: dict[str, list[Sample]] = {}
        for sample in all_samples(default()):
            self._samples.setdefault(sample.op, []).append(sample)

    def lines(self, op: str, devices: Sequence[str]) -> list[str]:
        """Return the lines of the table about an op."""
        self._say("running it")
        return [str(line) for line in fit(op, trials(self._samples[op], devices))]


def derived(ops: Sequence[str], processes: int = 2) -> dict[str, list[str]]:
    """Return the lines about each op.

    Raises:
        SpmdirError: an op cannot be run, not on meta tensors either.
    """
    found: dict[str, list[str]] = {}
    with pool(None, processes, "spmdir.checking.rules.dtype_table") as ask:
        for devices in (DEVICES, DEVICES[:1]):
            missing = [op for op in ops if op not in found]
            for op, answer in zip(missing, ask([("lines", op, devices) for op in missing], SECONDS), strict=True):
                if not isinstance(answer, Death):
                    found[op] = answer
                elif devices != DEVICES:
                    raise SpmdirError(f"'{op}' cannot be run: {answer}")
    return {op: found[op] for op in ops}


def main(ops: Sequence[str]) -> None:
    """Write the lines of some ops anew; those of all without any."""
    known: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines() if ops else ():
        known.setdefault(line.partition(" ")[0], []).append(line)
    known |= derived(ops or sorted(default().records))
    TABLE.write_text("".join(f"{line}\n" for op in sorted(known) for line in known[op]))


if __name__ == "__main__":
    main(sys.argv[2:]) if sys.argv[1:2] == ["write"] else serve(TableSession)
