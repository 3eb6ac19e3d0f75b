"""Reshards between real processes: some of all pairs of shardings, and data of every kind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from spmdir.core.dtype import DTYPES
from spmdir.core.mesh import Mesh
from spmdir.lowering.emit import lower_to_fx
from tests.lowering.collective_programs import shardings
from tests.lowering.gloo_ranks import on_ranks
from tests.lowering.reshard_programs import Reshard, assert_kept, localized, pieces_of
from tests.lowering.test_every_reshard import SHAPES
from tests.lowering.test_payloads import by_edges, into_sums, movements, onward, payload, settled


def resharded(
    rank: int,
    mesh: Mesh,
    reshards: Sequence[Reshard],
    values: Sequence[torch.Tensor],
    summed: Sequence[Reshard],
    addends: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """What this rank of the default process group holds of each value after its reshard.

    Those `summed` become partial sums of `addends` first and go on from there.
    """
    torch.manual_seed(0)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)

    def run(reshards: Sequence[Reshard], held: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return lower_to_fx(localized(mesh, reshards), device_mesh=device_mesh)(*held)

    def held(reshards: Sequence[Reshard], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [pieces_of(mesh, reshard, value)[rank] for reshard, value in zip(reshards, values, strict=True)]

    return (*run(reshards, held(reshards, values)), *run(onward(mesh, summed), run(summed, held(summed, addends))))


@pytest.mark.gloo
def test_reshards_between_real_ranks_keep_the_value_and_the_bits_of_what_is_only_moved(tmp_path: Any) -> None:
    mesh, generator, chosen = Mesh({"a": 2, "b": 2}), torch.Generator().manual_seed(0), random.Random(0)
    moved = [*movements(mesh, 5, DTYPES), *by_edges(mesh)]
    summed = into_sums(mesh, 3)
    pairs = [pair for pair in itertools.permutations(shardings(mesh, 2), 2) if any(side.partial for side in pair)]
    reduced = [Reshard(*pair, chosen.choice(SHAPES)) for pair in chosen.sample(pairs, 40)]
    values = [payload(reshard, generator) for reshard in moved]
    addends = [settled(payload(reshard, generator)) for reshard in summed]
    values += [torch.randint(-9, 9, reshard.shape, generator=generator).double() for reshard in reduced]
    reshards = [*moved, *reduced]
    by_rank = on_ranks(mesh.world_size, resharded, tmp_path, mesh, reshards, values, summed, addends)
    found = list(zip(*by_rank, strict=True))
    for reshard, value, shards in zip(reshards, values, found, strict=False):
        assert_kept(mesh, reshard, value, shards)
    for reshard, value, shards in zip(onward(mesh, summed), addends, found[len(reshards) :], strict=True):
        assert_kept(mesh, reshard, value, [settled(shard) for shard in shards])
