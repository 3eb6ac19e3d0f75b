"""`spmd plan-reshard`: print the plan of a reshard, its cost, and a lower bound on the bytes."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Sequence

from spmdir.core.brackets import split_entries
from spmdir.core.byte_size import size_text
from spmdir.core.dtype import DTYPES
from spmdir.core.errors import ShardingError
from spmdir.core.limits import check_shape
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding
from spmdir.core.time_text import time_text
from spmdir.pipeline.pipeline import Pipeline
from spmdir.report.communication import bound_text
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.step_errors import step_errors
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import DEFAULT, TOPOLOGIES, Topology
from spmdir.tools.argument_parser import ArgumentParser, parse_mesh_axes
from spmdir.tools.command import print_with_axes

EXAMPLES = """\
examples:
  spmd plan-reshard "S(0), R" "R, S(0)" --mesh 2x8 --shape 4096x4096
  spmd plan-reshard "dp: S(0), tp: P" "tp: S(1)" --mesh dp=2,tp=4 --shape 128x256 --dtype bf16
  spmd plan-reshard "S(0), S(0)" "S(1), S(1)" --mesh 2x8 --intra b --shape 4096x4096 --topology h100x8

A sharding is a list of `axis: placement`, or one placement for each axis in mesh order. If a mesh has sizes only, its
axes are a, b, c, … The cheapest plan depends on the topology: on `flat`, it sends the fewest bytes. If torch is
installed, the plans of DTensor's two planners are printed too, with the same cost model.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_argument("source", help="The sharding before.")
    parser.add_argument("target", help="The sharding after.")
    mesh = "The mesh: sizes, as in 2x8, or names and sizes, as in dp=2,tp=8."
    parser.add_argument("--mesh", required=True, type=parse_mesh_axes, metavar="AXES", help=mesh)
    intra = "The axes whose ranks are inside one node, separated by commas (default: all)."
    parser.add_argument("--intra", type=_parse_axis_names, metavar="AXES", help=intra)
    shape = "The global shape of the tensor, as in 4096x4096."
    parser.add_argument("--shape", required=True, type=_parse_shape, metavar="SIZES", help=shape)
    dtype = "The element type of the tensor (default: f32)."
    parser.add_argument("--dtype", default="f32", choices=DTYPES, metavar="TYPE", help=dtype)
    presets = f"{', '.join(TOPOLOGIES)}, a topology of a plug-in, or a .toml file (default: {DEFAULT.name})."
    parser.add_argument("--topology", metavar="NAME", help=f"The machine: {presets}")
    parser.add_argument("--no-dtensor", action="store_true", help="Leave out the plans of DTensor.")
    parser.add_color()
    parser.add_plugins()


def run(options: argparse.Namespace) -> int:
    """Print the plan of spmdir and the lower bound, and the plans of DTensor if torch is installed."""
    pipeline = Pipeline("", plugins=options.load_plugin)
    mesh = Mesh(options.mesh, intra_node=options.intra)
    source, target = (_parse_sharding(text, mesh) for text in (options.source, options.target))
    topology = pipeline.find_topology(options.topology)
    plan = plan_reshard(options.shape, options.dtype, source, target, mesh, topology, collectives=pipeline.collectives)
    itemsize = DTYPES[options.dtype].itemsize
    lines = [
        f"<{source}> -> <{target}>",
        f"mesh {mesh}, {'x'.join(map(str, options.shape))} {options.dtype}, topology {topology.name}\n",
        *_plan_lines("plan", plan.steps, options.shape, itemsize, mesh, topology, plan.lower_bound),
        f"lower bound  {bound_text(plan.lower_bound)}",
    ]
    lines += [f"error  {error}" for step in plan.steps for error in step_errors(step, options.shape, mesh)]
    if not options.no_dtensor and importlib.util.find_spec("torch"):
        from spmdir.tools.dtensor_plans import dtensor_plans

        for name, steps in dtensor_plans(options.shape, source, target, mesh).items():
            if isinstance(steps, str):
                lines += ["", f"{name}: {steps}"]
            else:
                lines += ["", *_plan_lines(name, steps, options.shape, itemsize, mesh, topology, plan.lower_bound)]
    print_with_axes("\n".join(lines), mesh.axis_names, options.color)
    return 0


def _parse_shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as `4096x4096`, for argparse; an empty text is a scalar."""
    sizes = text.split("x") if text else []
    if not all(size.isdecimal() and len(size) <= 18 for size in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape; expected sizes as in 4096x4096")
    shape = tuple(map(int, sizes))
    check_shape(shape)
    return shape


def _parse_axis_names(text: str) -> tuple[str, ...]:
    """Parse names of axes such as `dp,tp`, for argparse."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_sharding(text: str, mesh: Mesh) -> Sharding:
    """Parse a sharding such as `dp: S(0)`, or one placement for each axis of the mesh, such as `S(0), R`.

    Raises:
        SpmdirError: the text is malformed, or has another number of placements than the mesh has axes.
    """
    parts = list(split_entries(text))
    if not text.strip() or ":" in text:
        return as_sharding(text, mesh)
    if len(parts) != len(mesh.axes):
        raise ShardingError(
            f"found {len(parts)} placements in '{text}'; expected one for each axis of {mesh}, or `axis: placement`"
        )
    entries = [f"{axis}: {part}" for axis, part in zip(mesh.axis_names, parts, strict=True)]
    return as_sharding(", ".join(entries), mesh)


def _plan_lines(
    name: str,
    steps: Sequence[Step],
    shape: tuple[int, ...],
    itemsize: int,
    mesh: Mesh,
    topology: Topology,
    bound: float | None,
) -> list[str]:
    """Return the lines of a plan: its name with the totals, then each step with its bytes and time.

    Args:
        bound: the lower bound of the bytes; None if it is unknown.
    """
    costs = [step_cost(step, shape, itemsize, mesh, topology) for step in steps]
    total_wire_bytes = math.fsum(cost.wire_bytes for cost in costs)
    total_seconds = math.fsum(cost.seconds for cost in costs)
    ratio = f"  {total_wire_bytes / bound:.2f}x" if bound else ""
    rows = [(name, size_text(total_wire_bytes), time_text(total_seconds) + ratio)]
    for step, cost in zip(steps, costs, strict=True):
        rows.append((f"  {step} -> <{step.target}>", size_text(cost.wire_bytes), time_text(cost.seconds)))
    width, wire_width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    return [f"{text.ljust(width)}  {wire_text.rjust(wire_width)}  {time}" for text, wire_text, time in rows]
