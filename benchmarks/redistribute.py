"""Reshards between four gloo processes beside `DTensor.redistribute`: `python -m benchmarks.redistribute`.

Twenty reshards of an f32 matrix of a few MB. Every process first compares the two results; then the two sides take
turns, each round in the other order, and a round takes as long as its slowest process. Prints medians over rounds
and their ratio. DTensor has the flattened mesh that lets it merge collectives; with --min-cost it plans by cost.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._redistribute import use_min_cost_redistribution_plan
from torch.distributed.tensor.placement_types import _StridedShard

from benchmarks.measure import Row, options, print_table
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.lowering.emit import lower_to_fx
from spmdir.reshard.plan import plan_reshard
from spmdir.simulator.distribution import distribute, random_like
from tests.lowering.collective_programs import Program
from tests.lowering.gloo_ranks import on_ranks

ONE, TWO = Mesh({"a": 4}), Mesh({"a": 2, "b": 2})
EVEN, UNEVEN = (1024, 1024), (1021, 1027)

RESHARDS: list[tuple[Mesh, tuple[int, int], str, str]] = [
    (ONE, EVEN, "a: S(0)", ""),
    (ONE, EVEN, "a: S(1)", ""),
    (ONE, EVEN, "a: S(0)", "a: S(1)"),
    (ONE, EVEN, "a: S(1)", "a: S(0)"),
    (ONE, EVEN, "a: P", ""),
    (ONE, EVEN, "a: P", "a: S(0)"),
    (ONE, EVEN, "a: P", "a: S(1)"),
    (ONE, UNEVEN, "a: S(0)", "a: S(1)"),
    (ONE, UNEVEN, "a: S(1)", ""),
    (ONE, UNEVEN, "a: P", "a: S(0)"),
    (TWO, EVEN, "a: S(0)", "b: S(0)"),
    (TWO, EVEN, "a: S(0), b: S(0)", "a: S(1), b: S(1)"),
    (TWO, EVEN, "a: S(0), b: S(1)", "a: S(1), b: S(0)"),
    (TWO, EVEN, "a: S(0), b: S(0)", "b: S(0)"),
    (TWO, EVEN, "b: S(0), a: S(0)", "a: S(0), b: S(0)"),
    (TWO, EVEN, "a: P, b: P", ""),
    (TWO, EVEN, "a: P, b: S(0)", "a: S(0), b: S(0)"),
    (TWO, EVEN, "a: P, b: S(1)", "b: S(1)"),
    (TWO, UNEVEN, "a: S(1)", "b: S(1)"),
    (TWO, UNEVEN, "a: P, b: S(1)", "a: S(1)"),
]
"""Mesh, shape, sharding before and after."""


@attrs.frozen
class Times:
    """What one process measured of a reshard: seconds of each round."""

    ours: list[float]
    dtensor: list[float]


def measure(rank: int, rounds: int, min_cost: bool) -> list[Times]:
    """The times of all reshards on one rank of the default process group.

    Raises:
        AssertionError: the two sides have different results.
    """
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # it says that gloo has no all-to-all
    device_meshes = {mesh: _device_mesh(mesh) for mesh in (ONE, TWO)}
    with use_min_cost_redistribution_plan() if min_cost else contextlib.nullcontext():
        return [_measured(rank, rounds, device_meshes[case[0]], *case) for case in RESHARDS]


def _device_mesh(mesh: Mesh) -> Any:
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)
    if len(mesh.axes) > 1:
        device_mesh._flatten()
    return device_mesh


def _measured(
    rank: int, rounds: int, device_mesh: Any, mesh: Mesh, shape: tuple[int, int], before: str, after: str
) -> Times:
    source, target = parse_sharding(before), parse_sharding(after)
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(shape, generator=generator)
    local = distribute(whole, source, mesh, random_like(generator))[rank]
    program = lower_to_fx(Program(mesh, "reshard", "", source, target, shape, "f32").parse(), device_mesh=device_mesh)
    held = DTensor.from_local(
        local, device_mesh, placements(source, mesh), run_check=False, shape=whole.shape, stride=whole.stride()
    )
    wanted = placements(target, mesh)
    sides: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: program(local)[0],
        lambda: held.redistribute(placements=wanted).to_local(),
    )
    torch.testing.assert_close(*(side() for side in sides), rtol=1e-5, atol=1e-5)
    times = Times([], [])
    for index in range(rounds):
        for side, seconds in list(zip(sides, (times.ours, times.dtensor), strict=True))[:: 1 if index % 2 else -1]:
            dist.barrier()
            begin = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - begin)
    return times


def placements(sharding: Sharding, mesh: Mesh) -> list[Any]:
    """The sharding in DTensor's terms: axes of a dimension that are nested against mesh order make strided shards."""
    found: list[Any] = []
    for number, axis in enumerate(mesh.axis_names):
        own = sharding[axis]
        if own.dim is None:
            found.append(Partial(own.op) if own.op else Replicate())
            continue
        nested = sharding.dim_axes(own.dim)
        outside = nested[: nested.index(axis)]
        factor = mesh.group_size(other for other in outside if mesh.axis_names.index(other) > number)
        found.append(_StridedShard(own.dim, split_factor=factor) if factor > 1 else Shard(own.dim))
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--min-cost", action="store_true", help="DTensor plans by cost, which is not its default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        by_rank = on_ranks(4, measure, Path(folder), chosen.rounds, chosen.min_cost)
    rows = []
    for number, (mesh, shape, before, after) in enumerate(RESHARDS):
        of_case = [times[number] for times in by_rank]
        ours, theirs = (
            1000 * statistics.median(map(max, zip(*sides, strict=True)))
            for sides in ([times.ours for times in of_case], [times.dtensor for times in of_case])
        )
        plan = plan_reshard(shape, "f32", before, after, mesh, "flat")
        name = f"{'x'.join(map(str, mesh.sizes.values()))} {'x'.join(map(str, shape))} <{before}> -> <{after}>"
        rows.append(Row(name, ours / theirs, detail=f"{ours:.2f} / {theirs:.2f} ms; {plan}"))
    mean = math.exp(math.fsum(math.log(row.value) for row in rows) / len(rows))
    rows.append(Row("geometric mean", mean, 1.0))
    print_table("time on gloo, spmdir / DTensor", rows)


if __name__ == "__main__":
    main()
