"""Data keeps every bit where it is moved, NaNs and signs of zeros among it, and where it becomes a partial sum."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import attrs
import pytest
import torch

from spmdir.core.dtype import DTYPES
from spmdir.core.mesh import Mesh
from spmdir.core.placement.reductions import why_not_reduced
from spmdir.core.placement.sharding import Sharding
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.lowering.collective_programs import shardings
from tests.lowering.declared_placements import First
from tests.lowering.reshard_programs import Reshard, assert_kept, moved, simulated

SHAPES = [(8, 24), (7, 5), (1, 9), (3, 2)]

SUMMED = [dtype.name for dtype in TORCH_DTYPES if not dtype.is_bool and not why_not_reduced("sum", dtype)]
"""Element types of partial sums that process groups reduce."""


def payload(reshard: Reshard, generator: torch.Generator) -> torch.Tensor:
    """Random bits; among them, of a floating or complex type, NaN, -0.0 and infinities."""
    dtype, count = TORCH_DTYPES[DTYPES[reshard.dtype]], torch.Size(reshard.shape).numel()
    noise = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    value = noise.remainder(2).bool() if dtype == torch.bool else noise.view(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        numbers = torch.view_as_real(value).flatten() if dtype.is_complex else value
        special = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf")]).to(numbers.dtype)
        for number in range(min(count, len(special))):
            numbers[number :: len(special) + 3] = special[number]
    return value.reshape(reshard.shape)


def movements(mesh: Mesh, count: int, dtypes: Iterable[str]) -> list[Reshard]:
    """For each element type so many reshards in which nothing is partial."""
    chosen = random.Random(0)
    pairs = list(itertools.permutations(_whole(mesh), 2))
    return [
        Reshard(*pair, chosen.choice(SHAPES), dtype)
        for dtype in dtypes
        for pair in chosen.sample(pairs, min(count, len(pairs)))
    ]


def into_sums(mesh: Mesh, count: int) -> list[Reshard]:
    """For each element type so many reshards to a partial sum."""
    chosen = random.Random(0)
    whole, pending = _whole(mesh), [sharding for sharding in shardings(mesh, 2) if sharding.partial]
    return [
        Reshard(chosen.choice(whole), chosen.choice(pending), chosen.choice(SHAPES), dtype)
        for dtype in SUMMED
        for _ in range(count)
    ]


def by_edges(mesh: Mesh) -> list[Reshard]:
    """For each element type a reshard that is Python of a placement."""
    first = Sharding([(mesh.axis_names[0], First())])
    return [Reshard(first, Sharding(), (7, 5), dtype) for dtype in DTYPES]


def onward(mesh: Mesh, reshards: Iterable[Reshard]) -> list[Reshard]:
    """Where the values of `reshards` go next, so that nothing is partial."""
    chosen = random.Random(0)
    return [attrs.evolve(reshard, source=reshard.target, target=chosen.choice(_whole(mesh))) for reshard in reshards]


def settled(value: torch.Tensor) -> torch.Tensor:
    """`value` with NaN of one kind, since sums make others of them."""
    return value.where(value == value, float("nan"))


def _whole(mesh: Mesh) -> list[Sharding]:
    return [sharding for sharding in shardings(mesh, 2) if not sharding.partial]


MESHES = [Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3})]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_is_moved_keeps_its_bits(mesh: Mesh) -> None:
    generator = torch.Generator().manual_seed(0)
    reshards = [*movements(mesh, 12, DTYPES), *by_edges(mesh)]
    values = [payload(reshard, generator) for reshard in reshards]
    for reshard, value, found in zip(reshards, values, simulated(mesh, reshards, values), strict=True):
        assert_kept(mesh, reshard, value, found)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_becomes_a_partial_sum_keeps_its_bits(mesh: Mesh) -> None:
    generator = torch.Generator().manual_seed(0)
    reshards = into_sums(mesh, 12)
    values = [settled(payload(reshard, generator)) for reshard in reshards]
    after = onward(mesh, reshards)
    for reshard, value, found in zip(after, values, moved(mesh, after, simulated(mesh, reshards, values)), strict=True):
        assert_kept(mesh, reshard, value, [settled(shard) for shard in found])
