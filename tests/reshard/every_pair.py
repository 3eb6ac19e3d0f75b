"""Plans between all pairs of shardings of {R, S(0), S(1), P(sum)} on seven meshes; run as a program, of every
shape on every machine, or with `--every 100` each hundredth of them."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator

import torch

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.topology import CPU_GLOO, FLAT, H100X8
from tests.lowering.collective_programs import shardings
from tests.reshard.test_simulation import FEWEST_BYTES, run

SHAPES = [(8, 24), (7, 5), (1, 9), (0, 4), (3, 2)]
"""Even, uneven, of one element, of none, and with fewer elements than ranks."""

TOPOLOGIES = (FLAT, H100X8, FEWEST_BYTES, CPU_GLOO)
MESHES = [Mesh(dict(zip("abc", s, strict=False))) for s in ((2,), (3,), (4,), (2, 2), (2, 3), (2, 4), (2, 2, 2))]


def pairs_but_for_names(mesh: Mesh) -> Iterator[tuple[Sharding, ...]]:
    """Every pair of shardings of a matrix, but only one of those that differ by the names of axes of equal size."""
    chosen, seen = random.Random(0), set()
    same = [
        dict(zip(mesh.axis_names, names, strict=True))
        for names in itertools.permutations(mesh.axis_names)
        if [mesh.sizes[name] for name in names] == list(mesh.sizes.values())
    ]
    for pair in itertools.permutations(shardings(mesh, 2), 2):
        alike = [tuple(Sharding([(names[a], p) for a, p in side.entries]) for side in pair) for names in same]
        if seen.isdisjoint(alike):
            yield chosen.choice(alike)
        seen.update(alike)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="each how many-th plan")
    every = parser.parse_args().every
    for mesh in MESHES:
        torch.manual_seed(0)
        cases = [*itertools.product(pairs_but_for_names(mesh), SHAPES, TOPOLOGIES)][::every]
        for (source, target), shape, topology in cases:
            run(shape, source, target, mesh, topology)
        print(f"{mesh}: {len(cases)} plans keep the value", flush=True)


if __name__ == "__main__":
    main()
