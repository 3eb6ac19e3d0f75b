"""`spmd check-rules`: run every strategy of rules on simulated ranks, and compare with the op on one device."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from spmdir.core.errors import SpmdirError
from spmdir.core.limits import SIMULATED
from spmdir.core.number_text import integer, real
from spmdir.core.progress import say
from spmdir.tools.argument_parser import ArgumentParser
from spmdir.tools.command import write_text

EXAMPLES = """\
examples:
  spmd check-rules aten.mm aten.add.Tensor        check two ops; the exit status is 1 if a strategy is wrong
  spmd check-rules --all --json -o report.json    check all ops that have a rule
  spmd check-rules mylib.scale --load-plugin own.rules --samples own.py
  spmd check-rules --all --placement "Cyclic(0, 2)"

Every strategy runs on several numbers of ranks. The samples are those of spmdir and, if torch.testing can be imported,
the aten calls that torch's OpInfo samples make, forward and backward. Each op runs in a separate process, so a crash
ends only that op. The column `missing` counts correct strategies that the rule lacks without a reason in reasons.toml.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_argument("ops", nargs="*", help="Check the rules of these ops, such as aten.mm.")
    parser.add_argument("--all", action="store_true", help="Check all ops that have a rule.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_output()
    world = "Run on these numbers of ranks (default: 2,3,4)."
    parser.add_argument("--world", type=_parse_counts, default=(2, 3, 4), metavar="COUNTS", help=world)
    samples = "Also use the samples of samples() in this Python file, which is executed."
    parser.add_argument("--samples", metavar="FILE", help=samples)
    repeated: Any = {"action": "append", "default": []}
    placement = "Check only the strategies that this placement adds. The option may be repeated."
    parser.add_argument("--placement", **repeated, metavar="TEXT", help=placement)
    parser.add_plugins()
    parser.add_argument("--packaged", action="store_true", help="Use no samples of torch's OpInfos.")
    missing = "Do not search for correct strategies that the rule lacks."
    parser.add_argument("--no-missing", action="store_true", help=missing)
    progress = "Print a line to stderr for each op that is done, also if stderr is not a terminal."
    parser.add_argument("--progress", action="store_true", help=progress)
    processes = "Use N worker processes (default: one for each core)."
    parser.add_argument("--processes", type=integer, metavar="N", help=processes)
    timeout = "Stop an op after this many seconds (default: 300)."
    parser.add_argument("--timeout", type=real, default=300.0, metavar="SECONDS", help=timeout)


def run(options: argparse.Namespace) -> int:
    """Print the verdict of each op, and return exit status 1 if a strategy is unsound."""
    if bool(options.ops) == options.all:
        problem = "found names of ops and --all" if options.all else "no op was named"
        raise SpmdirError(f"{problem}; expected names of ops, such as aten.mm, or --all")
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
        progress=_print_progress if options.progress else say,
    )
    write_text(options.output, report.json() if options.json else report.table())
    return 0 if report.sound else 1


def _print_progress(line: str) -> None:
    """Print a line of progress to stderr, without delay."""
    print(line, file=sys.stderr, flush=True)


def _parse_counts(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks such as `2,3,4`, for argparse."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers; expected numbers such as 2,3,4") from None
    for count in counts:
        SIMULATED.check(count)
    return counts
