"""`spmd pipeline`: make or check the order of a pipeline-parallel step."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from spmdir.core.errors import SpmdirError
from spmdir.core.text_file import read_text_file
from spmdir.tools.argument_parser import ArgumentParser, number_parser
from spmdir.tools.command import write_text

if TYPE_CHECKING:
    from spmdir.pipelined.actions import StepOrder
    from spmdir.pipelined.times import StageTimes

EXAMPLES = """\
examples:
  spmd pipeline --kind 1f1b --ranks 4 --micro 8
  spmd pipeline --kind zbv --ranks 8 --micro 32 --message 0.1 -o zbv.csv
  spmd pipeline --kind search --ranks 4 --micro 8 --stages 8 --live 16 --times 1,1.3,0.7
  spmd pipeline --check torch.csv

Times are seconds of the share of the model that one rank has, for one micro-batch: forward, input gradient and weight
gradient. With -o, the order is written as a CSV of torch.distributed.pipelining. --check reads one.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    kind = "The kind of the order: gpipe, 1f1b, zb, zbv or search (default: 1f1b)."
    parser.add_argument("--kind", metavar="NAME", help=kind)
    ranks = "The number of ranks along the pipeline axis (default: 4)."
    parser.add_argument("--ranks", type=number_parser("ranks", 1, 1024), metavar="N", help=ranks)
    micro = "The number of micro-batches (default: twice the ranks)."
    parser.add_argument("--micro", type=number_parser("micro-batches", 1, 4096), metavar="N", help=micro)
    stages = "The number of stages, a multiple of the ranks (default: one a rank, two for zbv)."
    parser.add_argument("--stages", type=number_parser("stages", 1, 4096), metavar="N", help=stages)
    times = "Seconds of forward, input gradient and weight gradient of a rank (default: 1,1,1)."
    parser.add_argument("--times", default="1,1,1", metavar="F,I,W", help=times)
    message = "Seconds of a message between ranks (default: 0)."
    parser.add_argument("--message", type=float, default=0.0, metavar="SECONDS", help=message)
    live = "For search: how many activations of a stage a rank may hold (default: no limit)."
    parser.add_argument("--live", type=number_parser("activations", 1, 2**20), metavar="N", help=live)
    check = "Check the order in FILE, a CSV of torch, with or without messages, and print it."
    parser.add_argument("--check", metavar="FILE", help=check)
    messages = "Write the messages too (the format compute_comms of torch)."
    parser.add_argument("--messages", action="store_true", help=messages)
    parser.add_output()


def run(options: argparse.Namespace) -> int:
    """Print the order, its time, a lower bound, the idle fraction and the activations; or write it as CSV."""
    from spmdir.pipelined.order_text import order_text
    from spmdir.pipelined.rows import print_csv

    if options.check:
        order = _read_order(options)
        times = _stage_times(options, order.stage_map.stages, order.stage_map.ranks)
    else:
        order, times = _make_order(options)
    if options.output and options.output != "-":
        write_text(options.output, print_csv(order, options.messages), options.check or "-")
    else:
        write_text(None, order_text(order, times))
    return 0


def _read_order(options: argparse.Namespace) -> StepOrder:
    """Return the order in the file of --check.

    Raises:
        SpmdirError: the order is invalid, or an option for making an order is set too.
    """
    from spmdir.pipelined.rows import parse_csv

    names = ("kind", "ranks", "micro", "stages", "live")
    conflicting = [f"--{name}" for name in names if getattr(options, name) is not None]
    if conflicting:
        raise SpmdirError(
            f"found --check and {', '.join(conflicting)}; expected --check alone, which reads the order from a "
            "file: leave out the others"
        )
    return parse_csv(read_text_file(options.check, "order"), options.check)


def _make_order(options: argparse.Namespace) -> tuple[StepOrder, StageTimes]:
    """Return the order of the kind of the options, and the times of its stages.

    Defaults are the kind 1f1b, 4 ranks, two micro-batches for each rank, and one stage for each rank; two stages if the
    kind folds the model, as zbv does.
    """
    from spmdir.pipelined.kinds import KINDS, make_order

    kind, ranks = options.kind or "1f1b", options.ranks or 4
    if options.live is not None and kind != "search":
        raise SpmdirError(
            f"found --live with --kind {kind}, which determines the activations; expected --kind search: leave "
            "out --live"
        )
    is_folded = kind in KINDS and KINDS[kind].shape == "folded"
    stages = options.stages or ranks * (2 if is_folded else 1)
    times = _stage_times(options, stages, ranks)
    return make_order(kind, ranks, options.micro or 2 * ranks, times, options.live), times


def _stage_times(options: argparse.Namespace, stages: int, ranks: int) -> StageTimes:
    """Return equal times for all stages: --times are the times of all stages of one rank together.

    Raises:
        SpmdirError: --times or --message is not a valid time.
    """
    from spmdir.pipelined.times import equal_stages

    try:
        forward, input_gradient, weight_gradient = (float(part) * ranks for part in options.times.split(","))
        is_valid = all(0 <= seconds < math.inf for seconds in (forward, input_gradient, weight_gradient))
    except ValueError:
        is_valid, forward, input_gradient, weight_gradient = False, 0.0, 0.0, 0.0
    if not is_valid:
        raise SpmdirError(f"invalid times '{options.times}'; expected three numbers from 0 on, such as 1,1.3,0.7")
    if not 0 <= options.message < math.inf:
        raise SpmdirError(f"invalid time of a message {options.message}; expected seconds from 0 on")
    return equal_stages(stages, forward, input_gradient, weight_gradient, options.message)
