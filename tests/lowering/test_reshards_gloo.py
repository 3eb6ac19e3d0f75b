"""Reshards between real processes: some of all pairs of shardings, and data of every kind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from spmdir.lowering import lower_to_fx
from spmdir.mesh import Mesh
from tests.lowering.programs import shardings
from tests.lowering.ranks import on_ranks
from tests.lowering.reshards import Reshard, assert_kept, localized, pieces_of
from tests.lowering.test_every_reshard import SHAPES
from tests.lowering.test_payloads import movements, payload

BY_GLOO = ["f64", "f32", "f16", "bf16", "i64", "i32", "i8", "ui8", "i1"]
"""Element types that gloo carries in every collective."""


def resharded(
    rank: int, mesh: Mesh, reshards: Sequence[Reshard], values: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What this rank of the default process group holds of each value after its reshard."""
    torch.manual_seed(0)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)
    held = [pieces_of(mesh, reshard, value)[rank] for reshard, value in zip(reshards, values, strict=True)]
    return lower_to_fx(localized(mesh, reshards), device_mesh=device_mesh)(*held)


@pytest.mark.gloo
def test_reshards_between_real_ranks_keep_the_value_and_the_bits_of_what_is_only_moved(tmp_path: Any) -> None:
    mesh, generator, chosen = Mesh({"a": 2, "b": 2}), torch.Generator().manual_seed(0), random.Random(0)
    moved = movements(mesh, 5, BY_GLOO)
    pairs = [pair for pair in itertools.permutations(shardings(mesh, 2), 2) if any(side.partial for side in pair)]
    reduced = [Reshard(*pair, chosen.choice(SHAPES)) for pair in chosen.sample(pairs, 40)]
    values = [payload(reshard, generator) for reshard in moved]
    values += [torch.randint(-9, 9, reshard.shape, generator=generator).double() for reshard in reduced]
    reshards = [*moved, *reduced]
    by_rank = on_ranks(mesh.world_size, resharded, tmp_path, mesh, reshards, values)
    for reshard, value, found in zip(reshards, values, zip(*by_rank, strict=True), strict=True):
        assert_kept(mesh, reshard, value, found)
