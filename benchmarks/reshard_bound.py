"""How near plans come to the lower bound, over all pairs of shardings: `python -m benchmarks.reshard_bound`.

Prints, for each mesh, wire bytes over the bound (geometric mean and worst) of the pairs without and with a pending
sum, how many are above 1.0, and the mean time to plan one pair that was never planned.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time

from spmdir.mesh import Mesh
from spmdir.placement import Partial, R, Shard
from spmdir.planner import Plan, plan_reshard
from spmdir.sharding import Sharding

MESHES = ({"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 8}, {"a": 2, "b": 2, "c": 2}, {"a": 2, "b": 2, "c": 2, "d": 2})
PLACEMENTS = (R, Shard(0), Shard(1), Partial("sum"))


def shardings(mesh: Mesh) -> list[Sharding]:
    """Every sharding of a matrix, in every nesting order."""
    found: dict[Sharding, None] = {}
    for order in itertools.permutations(mesh.axis_names):
        for placements in itertools.product(PLACEMENTS, repeat=len(order)):
            found[Sharding(zip(order, placements, strict=True))] = None
    return list(found)


def ratio(plan: Plan) -> float:
    """Wire bytes over the lower bound; 1 where nothing need be sent and nothing is."""
    return plan.wire_bytes / plan.lower_bound if plan.lower_bound else math.inf if plan.wire_bytes else 1.0


def summary(plans: list[Plan]) -> str:
    ratios = [ratio(plan) for plan in plans]
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    above = sum(value > 1 + 1e-9 for value in ratios)
    return f"{len(plans):6} pairs  mean {mean:.3f}  worst {max(ratios):.2f}  above 1.0: {above}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns")
    parser.add_argument("--limit", type=int, default=9000, help="pairs a mesh; beyond that, a sample")
    parser.add_argument("--show", type=int, default=0, help="how many of the worst pairs to print")
    options = parser.parse_args()
    for axes in MESHES:
        mesh = Mesh(axes)
        known = shardings(mesh)
        pairs = [(a, b) for a in known for b in known if a != b]
        if len(pairs) > options.limit:
            pairs = random.Random(0).sample(pairs, options.limit // 30)
        begin = time.process_time()
        plans = {pair: plan_reshard((options.size,) * 2, "f32", *pair, mesh) for pair in pairs}
        seconds = time.process_time() - begin
        print(f"{mesh}  {1000 * seconds / len(pairs):.2f} ms a pair")
        moved = [plan for (a, b), plan in plans.items() if not a.partial and not b.partial]
        reduced = [plan for (a, b), plan in plans.items() if a.partial or b.partial]
        print(f"  R, S     {summary(moved)}\n  with P   {summary(reduced)}")
        for (a, b), plan in sorted(plans.items(), key=lambda item: -ratio(item[1]))[: options.show]:
            print(f"    {ratio(plan):.2f}  <{a}> -> <{b}>: {plan}")


if __name__ == "__main__":
    main()
