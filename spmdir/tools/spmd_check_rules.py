"""`spmd-check-rules`: run every strategy of the rules on simulated ranks, and compare with the op on one device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from spmdir.core.errors import SpmdirError
from spmdir.core.limits import SIMULATED
from spmdir.core.number_text import integer, real
from spmdir.core.progress import say
from spmdir.tools.command import ArgumentParser, guarded, write_text

_DESCRIPTION = "Check rules by running their ops: every strategy, on several numbers of ranks."
_EXAMPLES = """\
examples:
  spmd-check-rules aten.mm aten.add.Tensor        two ops; status 1 if a strategy is wrong
  spmd-check-rules --all --json -o report.json    all ops that have a rule
  spmd-check-rules mylib.scale --load-plugin own.rules --samples own.py
  spmd-check-rules --all --placement "Cyclic(0, 2)"

Samples are those of spmdir and the aten calls that torch's OpInfo samples make, forward and backward, the latter
if torch.testing can be loaded. Every op runs in a process of its own, so that one that crashes ends no other.
`missing` counts strategies that are right, but that the rule does not have, without a reason in reasons.toml.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    if bool(options.ops) == options.all:
        raise SpmdirError("expected names of ops, such as aten.mm, or --all")
    from spmdir.checking.rules import check_rules

    report = check_rules(
        options.ops or None,
        world_sizes=options.world,
        samples=options.samples,
        placements=options.placement,
        plugins=options.load_plugin,
        captured=not options.packaged,
        missing=not options.no_missing,
        processes=options.processes,
        timeout=options.timeout,
        progress=_show if options.progress else say,
    )
    write_text(options.output, report.json() if options.json else report.table())
    return 0 if report.sound else 1


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser(
        "spmd-check-rules",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("ops", nargs="*", help="names of ops, such as aten.mm")
    parser.add_argument("--all", action="store_true", help="all ops that have a rule")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write there instead of stdout")
    parser.add_argument("--world", type=_counts, default=(2, 3, 4), help="numbers of ranks (default 2,3,4)")
    parser.add_argument("--samples", metavar="FILE", help="a Python file with samples(), which is executed")
    listed: Any = {"action": "append", "default": []}
    parser.add_argument("--placement", **listed, metavar="TEXT", help="only the strategies that this placement adds")
    parser.add_plugins()
    parser.add_argument("--packaged", action="store_true", help="no samples from torch's OpInfos")
    parser.add_argument("--no-missing", action="store_true", help="do not look for strategies that are left out")
    parser.add_argument("--progress", action="store_true", help="a line to stderr for each op; terminals show the last")
    parser.add_argument("--processes", type=integer, help="worker processes (default: one a core)")
    parser.add_argument("--timeout", type=real, default=300.0, help="seconds for one op (default 300)")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 2,3,4") from None
    for count in counts:
        SIMULATED.check(count)
    return counts


if __name__ == "__main__":
    raise SystemExit(main())
