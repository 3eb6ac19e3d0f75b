"""`python -m spmdir.checking.rules.dtype_table write OP…`: update the table of element types with the lines of ops.

`make op-table` runs it for all ops that have a rule, which takes minutes. Some native kernels end the process for
unusual element types. Such an op is run on meta tensors only.
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
"""The time limit of one op."""


class TableSession:
    """The jobs of a worker process. It derives the lines of ops from their samples."""

    def __init__(self, setup: None, say: Callable[[str], None]):
        self._say = say
        self._samples: dict[str, list[Sample]] = {}
        for sample in all_samples(default()):
            self._samples.setdefault(sample.op, []).append(sample)

    def lines(self, op: str, devices: Sequence[str]) -> list[str]:
        """Return the lines of an op in the table."""
        self._say("running it")
        return [str(line) for line in fit(op, trials(self._samples[op], devices))]


def derive_lines(ops: Sequence[str], processes: int = 2) -> dict[str, list[str]]:
    """Return op → its lines of the table.

    An op that ends its worker process is run again on meta tensors only.

    Raises:
        SpmdirError: an op cannot be run even on meta tensors.
    """
    lines_of_op: dict[str, list[str]] = {}
    with pool(None, processes, "spmdir.checking.rules.dtype_table") as run_jobs:
        for devices in (DEVICES, DEVICES[:1]):
            missing = [op for op in ops if op not in lines_of_op]
            for op, answer in zip(missing, run_jobs([("lines", op, devices) for op in missing], SECONDS), strict=True):
                if not isinstance(answer, Death):
                    lines_of_op[op] = answer
                elif devices != DEVICES:
                    raise SpmdirError(
                        f"'{op}' cannot be run: {answer}; expected samples that torch can run on this machine: "
                        "leave this op out"
                    )
    return {op: lines_of_op[op] for op in ops}


def main(ops: Sequence[str]) -> None:
    """Update the lines of the given ops, or the entire table if there are none."""
    lines_of_op: dict[str, list[str]] = {}
    kept_lines = TABLE.read_text().splitlines() if ops else []
    for line in kept_lines:
        lines_of_op.setdefault(line.partition(" ")[0], []).append(line)
    lines_of_op |= derive_lines(ops or sorted(default().records))
    TABLE.write_text("".join(f"{line}\n" for op in sorted(lines_of_op) for line in lines_of_op[op]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        main(sys.argv[2:])
    else:  # a worker process of `derive_lines`
        serve(TableSession)
