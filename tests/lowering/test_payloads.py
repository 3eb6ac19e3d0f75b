"""Moved data keeps every bit: NaNs of all kinds, zeros with their sign, integers, truth values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
import torch

from spmdir.lowering.torch_values import TORCH_DTYPES
from spmdir.mesh import Mesh
from tests.lowering.programs import shardings
from tests.lowering.reshards import Reshard, assert_kept, simulated

SHAPES = [(8, 24), (7, 5), (1, 9), (3, 2)]


def payload(reshard: Reshard, generator: torch.Generator) -> torch.Tensor:
    """Random bits; among them, of a floating type, NaN, -0.0 and infinities."""
    dtype, count = TORCH_DTYPES[reshard.dtype], torch.Size(reshard.shape).numel()
    noise = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    value = noise.remainder(2).bool() if dtype == torch.bool else noise.view(dtype)
    if dtype.is_floating_point:
        special = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf")]).to(dtype)
        for number in range(min(count, len(special))):
            value[number :: len(special) + 3] = special[number]
    return value.reshape(reshard.shape)


def movements(mesh: Mesh, count: int, dtypes: Iterable[str]) -> list[Reshard]:
    """For each element type so many reshards in which no reduction is pending."""
    chosen = random.Random(0)
    whole = [sharding for sharding in shardings(mesh, 2) if not sharding.partial]
    pairs = list(itertools.permutations(whole, 2))
    return [
        Reshard(*pair, chosen.choice(SHAPES), dtype)
        for dtype in dtypes
        for pair in chosen.sample(pairs, min(count, len(pairs)))
    ]


@pytest.mark.parametrize("mesh", [Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3})], ids=str)
def test_what_is_moved_keeps_its_bits(mesh: Mesh) -> None:
    generator = torch.Generator().manual_seed(0)
    reshards = movements(mesh, 12, TORCH_DTYPES)
    values = [payload(reshard, generator) for reshard in reshards]
    for reshard, value, found in zip(reshards, values, simulated(mesh, reshards, values), strict=True):
        assert_kept(mesh, reshard, value, found)
