"""`spmd-translate`: exported PyTorch programs and `sdy` text to textual IR, and textual IR to Python and `sdy` text."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from spmdir.core.errors import shown
from spmdir.core.mesh import Mesh
from spmdir.core.number_text import integer
from spmdir.core.placement.sharding_plan import ShardingPlan, read_plan
from spmdir.pipeline.pipeline import Pipeline
from spmdir.tools.argument_parser import ArgumentParser, parse_mesh_axes, parse_sizes, pipeline_of
from spmdir.tools.command import read_text, run_tool, write_text

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

_DESCRIPTION = (
    "Translate an exported PyTorch program, the exported program of one rank, or Shardy's text to SPMD IR, "
    "or SPMD IR to Python or Shardy's text."
)
_EXAMPLES = """\
examples:
  spmd-translate --import-pt2 model.pt2 --mesh dp=2,tp=4 --shardings plan.toml -o model.mlir
  spmd-translate --import-rank rank0.pt2 --mesh dp=2,tp=4 --shardings plan.toml --group 3=tp --reference model.pt2
  spmd-opt model.mlir --propagate --insert-reshard --lower-reshard --localize -o rank.mlir
  spmd-translate --emit-fx rank.mlir --rank 3
  spmd-translate --export-sdy model.mlir -o model.sdy.mlir

A plan file annotates inputs and parameters with shardings. The compiler decides the shardings of all other tensors:
  out_shardings = ["dp: S(0)", "?"]           # in the order of the outputs; the compiler decides "?"
  keep = ["tp"]                               # weights sharded along tp are never gathered along tp
  [shardings]
  x = "dp: S(0)"
  "model.layers.*.mlp.up_proj.weight" = "tp: S(0)"
The layouts of [activations] apply only while a model is captured: see spmdir.parallelize.
"""


_RECIPE = re.compile(r"[\w\s*(),]+")
"""The characters of a recipe. A path with an extension does not match."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Translate in the direction that the options name, and write the result."""
    parser = argument_parser()
    options = parser.parse(argv)
    pipeline, status = pipeline_of(options), 0
    source = options.import_pt2 or options.import_rank or options.emit_fx or options.export_sdy or options.import_sdy
    if options.import_pt2 is not None:
        mesh = _required_mesh(parser, options, "--import-pt2")
        with pipeline.rules:
            text = import_pt2(
                options.import_pt2,
                mesh,
                options.shardings,
                options.missing_rule,
                trust=options.trust,
                check=options.check,
                debuginfo=options.debuginfo,
            )
    elif options.import_rank is not None:
        mesh = _required_mesh(parser, options, "--import-rank")
        with pipeline.rules:
            text, is_equal = import_rank(
                options.import_rank,
                mesh,
                options.shardings,
                options.rank,
                dict(options.group),
                options.reference,
                trust=options.trust,
                debuginfo=options.debuginfo,
            )
        status = 0 if is_equal else 1
    elif options.emit_fx is not None:
        text = emit_fx(*read_text(options.emit_fx), options.rank, options.sizes, pipeline)
    elif options.export_sdy is not None:
        text = export_sdy(*read_text(options.export_sdy), pipeline)
    else:
        text = import_sdy(*read_text(options.import_sdy))
    write_text(options.output, text, source)
    return status


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-translate", description=_DESCRIPTION, epilog=_EXAMPLES)
    direction = parser.add_mutually_exclusive_group(required=True)
    explained = "Import a program that torch.export.save wrote, and print its IR."
    direction.add_argument("--import-pt2", metavar="MODEL", help=explained)
    explained = "Import the exported program of one rank, which calls collectives, and print the IR of all ranks."
    direction.add_argument("--import-rank", metavar="RANK_MODEL", help=explained)
    explained = "Print the program of one rank as Python; - reads stdin."
    direction.add_argument("--emit-fx", metavar="IN", help=explained)
    explained = "Print a program as text of Shardy's dialect sdy; - reads stdin."
    direction.add_argument("--export-sdy", metavar="IN", help=explained)
    explained = "Print the IR of a program in text of Shardy's dialect sdy; - reads stdin."
    direction.add_argument("--import-sdy", metavar="IN", help=explained)
    parser.add_output()

    group = parser.add_argument_group("with --import-pt2 and --import-rank")
    explained = "Load the program even if loading it executes code from the file."
    group.add_argument("--trust", action="store_true", help=explained)
    explained = "The mesh: names and sizes, as in dp=2,tp=4, or sizes, as in 2x4."
    group.add_argument("--mesh", type=parse_mesh_axes, metavar="AXES", help=explained)
    explained = (
        "With --import-pt2, annotate the program with a plan file, or with a recipe such as fsdp*tp. "
        "With --import-rank, read the shardings of the inputs from a plan file."
    )
    group.add_argument("--shardings", metavar="PLAN", help=explained)

    group = parser.add_argument_group("with --import-pt2")
    explained = "Replicate an op without a rule and warn, or reject it (default: warn)."
    group.add_argument("--missing-rule", choices=("warn", "error"), default="warn", help=explained)
    explained = "Run the program before and after the import on random inputs; the exit status is 1 if results differ."
    group.add_argument("--check", action="store_true", help=explained)
    group.add_argument(
        "--print-debuginfo",
        "--mlir-print-debuginfo",
        dest="debuginfo",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Print locations: the module paths and source lines that reports use (default: yes).",
    )

    group = parser.add_argument_group("with --import-rank")
    explained = (
        "The mesh axes of a process group, as in 3=tp or 4=dp,tp. Names such as mesh:tp need no option. Repeatable."
    )
    group.add_argument("--group", type=_parse_group, action="append", default=[], metavar="NAME=AXES", help=explained)
    explained = (
        "Compare with the program of one device in the archive MODEL, and print the result; the exit status is 1 "
        "if they differ."
    )
    group.add_argument("--reference", metavar="MODEL", help=explained)

    group = parser.add_argument_group("with --emit-fx and --import-rank")
    explained = "Print or import the program of rank N (default: 0)."
    group.add_argument("--rank", type=_parse_rank, default=0, metavar="N", help=explained)

    group = parser.add_argument_group("with --emit-fx")
    explained = "Use these numbers for symbolic sizes, as in s0=8,s1=5."
    group.add_argument("--sizes", type=parse_sizes, default={}, metavar="SIZES", help=explained)
    parser.add_pipeline()
    return parser


def _required_mesh(parser: ArgumentParser, options: argparse.Namespace, direction: str) -> Mesh:
    """Return the mesh of the options; end with an error if --mesh is missing."""
    if options.mesh is None:
        parser.error(f"{direction} requires --mesh, as in --mesh dp=2,tp=4")
    return Mesh(options.mesh)


def _parse_rank(text: str) -> int:
    """Parse a rank, for argparse."""
    try:
        return integer(text)
    except ValueError:  # also of thousands of digits
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a rank; expected an integer from 0 on") from None


def _parse_group(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse the name of a process group and its mesh axes, for argparse."""
    name, equals, axes = text.partition("=")
    names = tuple(axis.strip() for axis in axes.split(","))
    if not (name and equals and all(names)):
        raise argparse.ArgumentTypeError(f"{shown(text)} has no mesh axes; expected NAME=AXES, as in 3=tp or 4=dp,tp")
    return name, names


def import_pt2(
    path: str,
    mesh: Mesh,
    plan: str | None,
    missing_rule: Literal["warn", "error"] = "warn",
    *,
    trust: bool = False,
    check: bool = False,
    debuginfo: bool = True,
) -> str:
    """Import the exported program at `path`, with a plan file or recipe, and return its textual IR.

    Args:
        trust: load the file even if loading it executes code from it.
        check: compare the exported and the imported program on random inputs, and print the comparison to stderr.
        debuginfo: print locations.

    Raises:
        SpmdirError: a file cannot be read, the plan is malformed, or the program cannot be imported.
    """
    from spmdir.dialects import ir
    from spmdir.importer.importer import import_compared
    from spmdir.importer.pt2_archive import load_pt2

    program = load_pt2(path, trust)
    shardings = _resolve_plan(plan, program, mesh) if plan else ShardingPlan()
    module, comparisons = import_compared(program, mesh, shardings, missing_rule=missing_rule, check=check)
    for comparison in comparisons:
        print(comparison, file=sys.stderr)
    return ir.print_ir(module, debuginfo=debuginfo)


def import_rank(
    path: str,
    mesh: Mesh,
    plan: str | None,
    rank: int,
    groups: Mapping[str, tuple[str, ...]],
    reference: str | None = None,
    *,
    trust: bool = False,
    debuginfo: bool = True,
) -> tuple[str, bool]:
    """Import the exported program of one rank, and return the textual IR of all ranks.

    Args:
        path: the archive.
        mesh: the mesh of all ranks.
        plan: the plan file with the shardings of the inputs; None if all are replicated.
        rank: the position of the rank in the mesh.
        groups: name of a process group → its mesh axes.
        reference: the archive of the program of one device; the comparison is printed to stderr.
        trust: load the archives even if loading executes code from them.
        debuginfo: print locations.

    Returns:
        (textual IR, whether the program equals the reference). Without a reference, the second is True.

    Raises:
        SpmdirError: a file cannot be read, the plan is malformed, or an op is not legal on its operands.
    """
    from spmdir.dialects import ir
    from spmdir.importer.pt2_archive import load_pt2
    from spmdir.read_back.check_ranks import check_ranks
    from spmdir.read_back.import_ranks import import_ranks

    shardings = read_plan(*read_text(plan), mesh) if plan else None
    module = import_ranks(load_pt2(path, trust), mesh, shardings, rank=rank, groups=groups)
    is_equal = True
    if reference is not None:
        comparison = check_ranks(module, load_pt2(reference, trust))
        is_equal = comparison.is_equal
        print(comparison, file=sys.stderr)
    return ir.print_ir(module, debuginfo=debuginfo), is_equal


def _resolve_plan(text: str, program: torch.export.ExportedProgram, mesh: Mesh) -> ShardingPlan:
    """Return the plan of a recipe or of a plan file. The name of an existing file is not read as a recipe.

    Raises:
        SpmdirError: the file cannot be read or is not a plan, or the recipe does not fit the program.
    """
    if _RECIPE.fullmatch(text) and not os.path.exists(text):
        from spmdir.plans.exported_model import exported_model
        from spmdir.plans.resolve import sharding_plan

        return sharding_plan(exported_model(program), mesh, text)
    return read_plan(*read_text(text), mesh)


def emit_fx(
    text: str, file: str, rank: int, sizes: Mapping[str, int] | None = None, pipeline: Pipeline | None = None
) -> str:
    """Return Python source that defines the program of `rank` as a torch module, and its process groups.

    Args:
        text: the text of a program at any stage after import.
        file: the name of the file, for errors.
        rank: from 0 on.
        sizes: numbers for symbolic sizes by name.
        pipeline: the pipeline whose remaining passes run; None for the standard pipeline.

    Raises:
        SpmdirError: the text is malformed or cannot be lowered.
    """
    from spmdir.dialects import ir
    from spmdir.lowering.emit import lower_to_fx

    module = ir.parse(text, file)
    return python_source(lower_to_fx(module, rank, sizes=sizes, pipeline=pipeline), ir.mesh(module), rank)


def export_sdy(text: str, file: str, pipeline: Pipeline) -> str:
    """Return the program `text` as text of Shardy's dialect `sdy`.

    Args:
        text: the text of a program before `lower-reshard`.
        file: the name of the file, for errors.
        pipeline: the pipeline with the rules of the torch ops.

    Raises:
        SpmdirError: the text is malformed, or Shardy cannot represent a part of it.
    """
    from spmdir.dialects import ir
    from spmdir.shardy import export_sdy

    with pipeline.rules:
        return export_sdy.export_sdy(ir.parse(text, file), pipeline.rules)


def import_sdy(text: str, file: str) -> str:
    """Return the IR of a program in text of Shardy's dialect `sdy`.

    Raises:
        SpmdirError: the text is malformed, or spmdir cannot represent a part of it.
    """
    from spmdir.dialects import ir
    from spmdir.shardy import import_sdy

    return ir.print_ir(import_sdy.import_sdy(text, file))


def python_source(graph_module: GraphModule, mesh: Mesh, rank: int) -> str:
    """Return Python source with the class of `graph_module` and the function `connect`, which creates its groups.

    Constants of the module are literals in the source. A group over sub-axes is a group over axes of a refined mesh.

    Args:
        mesh: the mesh of the program.
        rank: the rank of the program, for names and comments.
    """
    from spmdir.lowering.process_groups import symbolic_axes

    nodes = graph_module.graph.nodes
    groups: dict[str, tuple[str, ...]] = {}
    for name in sorted({argument for node in nodes for argument in node.args if isinstance(argument, str)}):
        axes = symbolic_axes(name)
        if axes:
            groups[name] = axes
    refined_mesh = mesh.refine(axis for axes in groups.values() for axis in axes)
    parts = {name: tuple(part for axis in axes for part in refined_mesh.parts(axis)) for name, axes in groups.items()}
    constants = {str(node.target): graph_module.get_buffer(node.target) for node in nodes if node.op == "get_attr"}
    namespaces = {getattr(node.target, "namespace", "") for node in nodes}
    return _SOURCE.format(
        imports="import spmdir.lowering.offload\n" if "spmdir" in namespaces else "",
        rank=rank,
        place=f"rank {rank} of mesh {mesh}",
        sizes=tuple(size for _, size in refined_mesh.axes),
        axes=refined_mesh.axis_names,
        groups=", ".join(f"{name!r}: {axes}" for name, axes in parts.items()),
        constants="".join(f"\n        {_constant(name, value)}" for name, value in constants.items()),
        forward=textwrap.indent(graph_module.code.strip(), "    "),
    )


def _constant(name: str, value: torch.Tensor) -> str:
    """Return the statement that registers a constant tensor as a buffer."""
    literal = f"torch.tensor({value.flatten().tolist()}, dtype={value.dtype}).reshape({tuple(value.shape)})"
    return f'self.register_buffer("{name}", {literal})'


_SOURCE = '''\
"""The program of {place}.

Run one process for each rank, with the program of that rank. Call `torch.distributed.init_process_group()`, then
`connect()`, then `Rank{rank}()(…)` on the local inputs.
"""

from math import inf, nan

import torch
import torch.distributed._functional_collectives
{imports}from torch import device
from torch.distributed.device_mesh import init_device_mesh

GROUPS = {{{groups}}}


def connect(device_type="cpu"):
    """Create the process groups over mesh axes, with the names that the program uses."""
    mesh = init_device_mesh(device_type, {sizes}, mesh_dim_names={axes})
    for name, axes in GROUPS.items():
        group = (mesh[axes[0]] if len(axes) == 1 else mesh[axes]._flatten()).get_group()
        if "#" in name:  # a stream has a separate group
            ranks = torch.distributed.get_process_group_ranks(group)
            group = torch.distributed.new_group(ranks, use_local_synchronization=True)
        torch.distributed.distributed_c10d._register_process_group(name, group)


class Rank{rank}(torch.nn.Module):
    def __init__(self):
        super().__init__(){constants}

{forward}
'''


if __name__ == "__main__":
    raise SystemExit(main())
