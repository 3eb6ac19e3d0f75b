"""`spmd plan-model`: compare the ways to train a model on a cluster, without accelerators and without weights."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING

from spmdir.core.byte_size import Bytes
from spmdir.core.errors import SpmdirError, shown
from spmdir.tools.argument_parser import ArgumentParser, number_parser
from spmdir.tools.command import write_text

if TYPE_CHECKING:
    from spmdir.sweep.workload import Workload

EXAMPLES = """\
examples:
  spmd plan-model config.json --ranks 64 --memory 72GiB
  spmd plan-model config.json --ranks 512 --batch 1024 --sequence 8192 --save-plan plan.toml
  spmd plan-model model.py:build --ranks 16 --topology cluster.toml -o sweep.html

MODEL is the config.json of a causal language model of transformers, a .pt2 file or FILE.py:FUNCTION. A .pt2 file is
a program of torch.export.save that returns its loss. FILE.py is executed: the function `build(samples, layers=32)`
returns (model, loss, batch), the arguments of `training_step`. No memory is allocated for the model, except for the
weights of a .pt2 file. Parameters and the state of AdamW are in f32; the model computes in bf16.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_argument("model", metavar="MODEL", help="The model: a config.json, a .pt2 or FILE.py:FUNCTION.")
    count = number_parser("ranks", 1, 2**20)
    parser.add_argument("--ranks", required=True, type=count, metavar="N", help="The number of accelerators.")
    parser.add_argument(
        "--batch",
        type=number_parser("samples", 1, 2**24),
        metavar="N",
        help="Samples of a step (default: one per rank).",
    )
    sequence = "Tokens of a sample of a language model (default: as many as it supports, at most 4096)."
    parser.add_argument("--sequence", type=number_parser("tokens", 1, 2**24), metavar="N", help=sequence)
    memory = "Memory that a rank may use, as in 72GiB (default: as the topology)."
    parser.add_argument("--memory", type=_parse_size, metavar="SIZE", help=memory)
    topology = "The machine, a preset or a .toml file (default: h100x8)."
    parser.add_argument("--topology", metavar="NAME", help=topology)
    recipes = "Compare these recipes, as a,b (default: all but auto and those with pp; fsdp*ep for experts)."
    parser.add_argument("--recipes", metavar="LIST", help=recipes)
    workers = "Price on N processes (default: the number of processors)."
    parser.add_argument("--workers", type=number_parser("processes", 1, 1024), metavar="N", help=workers)
    rows = "Print the first N rows (default: 20)."
    parser.add_argument("--rows", type=number_parser("rows", 1, 10**6), default=20, metavar="N", help=rows)
    certify = "Prove how far the decisions of the first N rows are from the best (default: 1)."
    parser.add_argument("--certify", type=number_parser("rows", 0, 10**6), default=1, metavar="N", help=certify)
    trust = "Load a .pt2 file even if loading it executes code from it."
    parser.add_argument("--trust", action="store_true", help=trust)
    plan = "Write the plan of the fastest setting to FILE, for `shard_module(plan=FILE)`."
    parser.add_argument("--save-plan", metavar="FILE", help=plan)
    parser.add_output()


def run(options: argparse.Namespace) -> int:
    """Price the settings, and write the table, and the plan of the fastest setting if it is requested.

    Returns: exit status 0; 1 if no setting fits the memory.
    """
    from spmdir.sweep.sweep import SweepRequest, certified, default_recipes, sweep
    from spmdir.sweep.sweep_text import plan_file, sweep_csv, sweep_html, sweep_json, sweep_text

    text = partial(sweep_text, most=options.rows)
    formats = {"": text, ".txt": text, ".json": sweep_json, ".csv": sweep_csv, ".html": sweep_html}
    extension = os.path.splitext(options.output or "")[1].lower()
    if extension not in formats:
        expected = ", ".join(filter(None, formats))
        raise SpmdirError(f"no format has the extension of '{options.output}'; expected {expected}")
    workload = _workload(options)
    request = SweepRequest.of(workload, options.ranks, options.batch, options.memory, options.topology)
    recipes = tuple(options.recipes.split(",")) if options.recipes else default_recipes(workload)
    result = certified(sweep(request, recipes, options.workers or os.cpu_count() or 1), options.certify)
    write_text(options.output, formats[extension](result), options.model)
    if options.save_plan:
        if result.best is None:
            raise SpmdirError(
                "no setting fits, so no plan was written; expected one that fits into memory: use more ranks "
                "or more memory"
            )
        write_text(options.save_plan, plan_file(result, result.best), options.model)
    return 0 if result.best else 1


def _workload(options: argparse.Namespace) -> Workload:
    """Return the model to plan: a configuration of transformers, an exported program, or a function of a file."""
    from spmdir.sweep.exported_workload import ExportedModel
    from spmdir.sweep.workload import ConfiguredModel, PythonModel

    if options.model.endswith(".json"):
        return ConfiguredModel.read(options.model, options.sequence)
    if options.model.endswith(".pt2"):
        return ExportedModel.read(options.model, options.sequence, options.trust)
    if ":" in options.model:
        return PythonModel.read(options.model, options.sequence)
    raise SpmdirError(f"cannot plan {shown(options.model)}; expected a config.json, a .pt2 or FILE.py:FUNCTION")


def _parse_size(text: str) -> float:
    """Parse a size of memory such as `72GiB`, for argparse."""
    try:
        return Bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a size; expected a number with a unit, as 72GiB"
        ) from None
