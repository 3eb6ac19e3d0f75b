"""Random reshards between random placements, shipped ones and plug-ins: planned, emitted, run on all ranks, compared.

`python -m tests.lowering.random_reshards --first 0 --count 5000` prints those that fail; a case is its number.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys

import attrs
import torch

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.placements.norm import Norm
from spmdir.simulator.distribution import collect
from tests.lowering import declared_placements
from tests.lowering.reshard_programs import Reshard, simulated

SHARDING = (
    "S({dim})",
    "Cyclic({dim}, {n})",
    "Strided({dim}, {n})",
    "Ragged({dim}, {sizes})",
    "ZigZag({dim})",
    "Padded({dim})",
)
"""The shipped placements that shard."""

PARTIAL = ("P(sum)", "P(avg)", "P(max)", "P(min)", "P(product)", "Masked", "Norm(2)", "Norm(inf)", "Quantised")
"""Those that are partial."""

DECLARED = (
    "Dealt({dim}, {n})",
    "Backwards({dim})",
    "Steep({dim})",
    "First",
    "Root(2)",
    "Thirds",
    "GatheredSum",
    "Linear",
    "Stable",
)
"""Plug-ins of all traits, of the module of tests that declares them."""

SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12)
"""Even, uneven, of one element, of none, and with fewer elements than ranks."""

assert declared_placements.First.trait == "other"  # texts name its placements


@attrs.frozen
class Case:
    """A reshard on a mesh of one to three axes of 2, 3 or 4 ranks, 16 at most."""

    number: int
    mesh: Mesh
    reshard: Reshard

    def __str__(self) -> str:
        return (
            f"{self.number}: <{self.reshard.source}> -> <{self.reshard.target}> of {self.reshard.shape} on {self.mesh}"
        )

    @property
    def tolerance(self) -> float:
        """Return how far the value may be off: by rounding, or by that of 8-bit integers on up to 16 ranks."""
        return 4.0 if "Quantised" in str(self) else 1e-9


def case(number: int) -> Case:
    """Return case `number`."""
    draw = random.Random(number)
    sizes = [draw.choice((2, 3, 4)) for _ in range(draw.choice((1, 1, 2, 2, 2, 3)))]
    while math.prod(sizes) > 16:
        sizes = [draw.choice((2, 3, 4)) for _ in sizes]
    mesh = Mesh(dict(zip("abc", sizes, strict=False)))
    shape = tuple(draw.choice(SIZES) for _ in range(draw.choice((0, 1, 1, 2, 2, 2, 3))))
    source, target = _sharding(draw, mesh, shape), _sharding(draw, mesh, shape)
    while not is_reachable(source, target):
        target = _sharding(draw, mesh, shape)
    return Case(number, mesh, Reshard(source, target, shape))


def is_reachable(source: Sharding, target: Sharding) -> bool:
    """Return whether steps make `target`: a partial norm has to be there before, as other values may be negative."""
    return all(source[axis] == placement for axis, placement in target.entries if isinstance(placement, Norm))


def _sharding(draw: random.Random, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Return a random sharding that a tensor of `shape` can have."""
    while True:
        axes = draw.sample(mesh.axis_names, len(mesh.axes))
        try:
            sharding = Sharding([(axis, parse_placement(_text(draw, shape, mesh.sizes[axis]))) for axis in axes])
            sharding.check_shape(mesh, shape)
        except ShardingError:  # partial values that do not commute, or a shape that a placement rejects
            continue
        return sharding


def _text(draw: random.Random, shape: tuple[int, ...], count: int) -> str:
    usual = ("R", "P(sum)", "S({dim})")
    template = draw.choice((*usual, *usual, *SHARDING, *PARTIAL, *DECLARED))
    dim = draw.randrange(max(len(shape), 1))
    size = shape[dim] if shape else 0
    ends = [0, *sorted(draw.randint(0, size) for _ in range(count - 1)), size]
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    return template.format(dim=dim, n=draw.randint(1, 3), sizes=sizes)


def fault(case: Case) -> str | None:
    """Return what is wrong with the reshard of a case; None if nothing is."""
    reshard, mesh = case.reshard, case.mesh
    torch.manual_seed(case.number)
    value = torch.randint(0, 9, reshard.shape).double()
    try:
        (found,) = simulated(mesh, [reshard], [value])
    except SpmdirError as error:
        return f"{type(error).__name__}: {error}"
    for rank, local in enumerate(found):
        shape = reshard.target.local_shape(reshard.shape, mesh, mesh.coordinate(rank))
        if local.shape != shape or local.dtype != value.dtype:
            return f"rank {rank} has {[*local.shape]} of {local.dtype}; expected {[*shape]} of {value.dtype}"
    off = (collect(found, reshard.target, mesh, reshard.shape) - value).abs().max() if value.numel() else 0
    return None if off <= case.tolerance else f"the value is off by {off}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    wrong = 0
    for number in range(options.first, options.first + options.count):
        found = fault(one := case(number))
        if found is not None:
            wrong += 1
            print(f"{one}\n    {found}", flush=True)
    print(f"{options.count} reshards, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
