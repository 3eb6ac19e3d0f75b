"""Decides random small programs, and tries all decisions: `python -m tests.search.compare_exhaustively`.

Prints each program of fewer than ten ops that is decided worse than the best of all decisions on all mesh axes
together, and fails if there is one. Programs of which too many decisions have to be kept are not compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.reshard.topology import FLAT, H100X8, Topology
from spmdir.search.solve import solve
from tests.search.exhaustive import optimum
from tests.search.random_programs import Program, for_each, programs
from tests.search.test_search import problem_of

MESHES = [Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"b": 4, "a": 2}), Mesh({"a": 2, "b": 2, "c": 2})]
LENGTHS = (3, 4, 8, 63, 64, 1024)
OPS = 9

OPTIMAL = 1 + 1e-6
"""Below this multiple of the least cost a decision is the best."""


def times_the_best(program: Program, topology: Topology, limit: int) -> float | None:
    """Return what a program costs as decided, as a multiple of what its best decision does; None if that is not known.

    Args:
        limit: how many decisions of some nodes are kept at the most.
    """
    problem = attrs.evolve(problem_of(program.text), topology=topology)
    cost = solve(problem).cost
    best = optimum(problem, cost, limit)
    if best is None:
        return None
    return cost / best.cost if best.cost else 1.0


def compare(count: int, first: int, limit: int, meshes: Sequence[Mesh] = MESHES) -> tuple[int, list[str]]:
    """Return how many programs were compared, each on two topologies, and the texts of those that are decided worse."""
    compared, worse = 0, list[str]()

    def run(program: Program) -> None:
        nonlocal compared
        for topology in (FLAT, H100X8):
            found = times_the_best(program, topology, limit)
            compared += found is not None
            if found is not None and found > OPTIMAL:
                worse.append(f"// {found:.6f} times the best on {topology.name}\n{program.text}")

    for_each(run, programs(meshes, ops=OPS, lengths=LENGTHS), count, first)
    return compared, worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the random programs")
    parser.add_argument("--limit", type=int, default=3000, help="decisions of some nodes to keep at the most")
    chosen = parser.parse_args()
    compared, worse = compare(chosen.count, chosen.seed, chosen.limit)
    print("\n".join(worse))
    print(f"{compared} compared, {len(worse)} decided worse than the best")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
