"""How near plans come to the lower bound, over all pairs of shardings: `python -m benchmarks.reshard_bound`.

Shardings are made of R, S(0), S(1) and P(sum) in every nesting order, the tensor is f32 and the topology flat. Prints
for each mesh the wire bytes over the bound without and with a pending sum, the time to plan a pair (each mesh in a
process of its own, so that nothing was planned before), and the pairs above 1.0 by reason. With --dtensor, modelled
times are compared with those of DTensor's plans instead, on all topologies and for several shapes; slower plans are
printed.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable

from benchmarks.measure import Row, cold, options, print_table
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.plan import ReshardPlan, plan_reshard
from spmdir.reshard.topology import TOPOLOGIES

MESHES = ((8,), (4, 2), (2, 8), (2, 2, 2), (2, 2, 2, 2))
DTENSOR_MESHES = ((2,), (3,), (4,), (8,), (2, 2), (2, 3), (4, 2), (2, 4), (2, 8), (2, 2, 2))
PLACEMENTS = (R, Shard(0), Shard(1), Partial("sum"))
SHAPES = ((4096, 4096), (64, 64), (10, 6), (3, 2))
PLANNING_MS = {1: 3.0, 2: 3.0, 4: 50.0}
"""Axes of a mesh → the milliseconds that planning a pair may take in the mean."""

LOCAL = ("slice", "partition")
REASONS: dict[str, Callable[[ReshardPlan], bool]] = {
    "chunks pass reducers, which receive them first and send them on": lambda plan: any(
        step.kind == "two_round_exchange" for step in plan.steps
    ),
    "a sum is made on one block and then sent on to another": lambda plan: (
        sum(step.kind not in LOCAL for step in plan.steps) > 1
    ),
    "one collective moves addends of a sum that is pending before or after": lambda plan: True,
}
"""Why a plan sends more than the bound → whether it is so; the first one that holds."""


def shardings(mesh: Mesh) -> list[Sharding]:
    """Every sharding of a matrix, in every nesting order."""
    found: dict[Sharding, None] = {}
    for order in itertools.permutations(mesh.axis_names):
        for placements in itertools.product(PLACEMENTS, repeat=len(order)):
            found[Sharding(zip(order, placements, strict=True))] = None
    return list(found)


def all_pairs(mesh: Mesh, limit: int) -> list[tuple[Sharding, Sharding]]:
    """Every pair of different shardings of a matrix; a sample of them if there are more than `limit`."""
    pairs = list(itertools.permutations(shardings(mesh), 2))
    return pairs if len(pairs) <= limit else random.Random(0).sample(pairs, min(limit, 300))


def ratio(plan: ReshardPlan) -> float:
    """Wire bytes over the lower bound; 1 where nothing need be sent and nothing is."""
    return plan.wire_bytes / plan.lower_bound if plan.lower_bound else math.inf if plan.wire_bytes else 1.0


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def named(sizes: tuple[int, ...]) -> dict[str, int]:
    """Axes a, b, c, … of these sizes."""
    return dict(zip("abcd", sizes, strict=False))


def sent(sizes: tuple[int, ...], shape: tuple[int, int], limit: int) -> tuple[list[Row], list[str]]:
    """The figures of one mesh, and a line for each reason for which pairs are above 1.0."""
    mesh = Mesh(named(sizes))
    pairs = all_pairs(mesh, limit)
    begin = time.process_time()
    plans = {pair: plan_reshard(shape, "f32", *pair, mesh, "flat") for pair in pairs}
    milliseconds = 1000 * (time.process_time() - begin) / len(pairs)
    moved = [ratio(plan) for (a, b), plan in plans.items() if not a.partial and not b.partial]
    reduced = [ratio(plan) for (a, b), plan in plans.items() if a.partial or b.partial]
    above = {pair: plan for pair, plan in plans.items() if ratio(plan) > 1 + 1e-9}
    name, form = "x".join(map(str, sizes)), "{:.3f}"
    rows = [
        Row(f"{name}: R and S, worst", max(moved), 1.0, form=form, detail=f"{len(moved)} pairs"),
        Row(f"{name}: with P, mean", mean(reduced), 1.1, form=form, detail=f"{len(reduced)} pairs"),
        Row(f"{name}: with P, worst", max(reduced), 1.5, form=form, detail=f"{len(above)} pairs above 1.0"),
        Row(f"{name}: planning, ms a pair", milliseconds, PLANNING_MS.get(len(sizes))),
    ]
    return rows, [f"{name}: {line}" for line in reasons(above)]


def reasons(above: dict[tuple[Sharding, Sharding], ReshardPlan]) -> list[str]:
    """For each reason how many pairs it has, their mean and worst ratio, and the worst pair with its plan."""
    by_reason: dict[str, list[tuple[Sharding, Sharding]]] = {}
    for pair, plan in above.items():
        by_reason.setdefault(next(why for why, holds in REASONS.items() if holds(plan)), []).append(pair)
    lines = []
    for why, pairs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        source, target = worst = max(pairs, key=lambda pair: ratio(above[pair]))
        figures = f"mean {mean([ratio(above[pair]) for pair in pairs]):.3f}, worst {ratio(above[worst]):.3f}"
        lines.append(f"{len(pairs)} pairs, {figures}: {why}; <{source}> -> <{target}>: {above[worst]}")
    return lines


def beside_dtensor(sizes: tuple[int, ...], limit: int) -> tuple[Row, list[str]]:
    """How many of our plans take longer than one of DTensor's, and these, for one mesh."""
    from tests.reshard.dtensor_comparison import compare

    pairs = all_pairs(Mesh(named(sizes)), limit)
    slower: list[str] = []
    times: dict[str, list[float]] = {}
    for one in compare(named(sizes), pairs, SHAPES, list(TOPOLOGIES.values())):
        slower += [str(one)] if one.slower else []
        for planner, seconds in one.theirs.items():
            times.setdefault(planner, []).append(seconds / one.ours.seconds if one.ours.seconds else 1.0)
    means = "; ".join(f"{planner} takes {mean(ratios):.2f}x, {len(ratios)} plans" for planner, ratios in times.items())
    return Row(f"{'x'.join(map(str, sizes))}: slower plans", len(slower), 0, form="{:.0f}", detail=means), slower


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns")
    parser.add_argument("--limit", type=int, default=9000, help="pairs a mesh; of more, 300 are tried")
    parser.add_argument("--dtensor", action="store_true", help="compare modelled times with DTensor's plans")
    chosen = parser.parse_args()
    rows: list[Row] = []
    lines: list[str] = []
    for sizes in DTENSOR_MESHES if chosen.dtensor else MESHES:
        if chosen.dtensor:
            row, more = cold(beside_dtensor, sizes, chosen.limit)
            rows.append(row)
        else:
            figures, more = cold(sent, sizes, (chosen.size, chosen.size), chosen.limit)
            rows += figures
        lines += more
    print_table("modelled seconds beside DTensor's" if chosen.dtensor else "bytes over the lower bound", rows)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
