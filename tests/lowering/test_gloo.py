"""Every collective between real processes."""

import random

import attrs
import pytest
import torch

from spmdir.core.mesh import Mesh
from spmdir.simulator.distribution import collect
from tests.lowering.collective_programs import Program, programs
from tests.lowering.gloo_ranks import on_ranks, run_programs
from tests.lowering.test_collectives import KINDS

pytestmark = pytest.mark.gloo


def all_programs(mesh: Mesh) -> list[Program]:
    sums = [p for shape in ((7, 5), (4, 8), (1, 3)) for kind in KINDS for p in programs(mesh, kind, shape)]
    kinds = ("all_reduce", "reduce_scatter")
    others = [p for kind in kinds for p in programs(mesh, kind, (3, 4), ("avg", "max", "min"))]
    truth = [
        attrs.evolve(p, dtype="i1")
        for kind in (*kinds, "partition")
        for p in programs(mesh, kind, (3, 4), ("any", "all"))
    ]
    return [*sums, *others, *truth]


@pytest.mark.parametrize("mesh", [Mesh({"a": 2}), Mesh({"a": 2, "b": 2})], ids=str)
def test_real_ranks_compute_what_the_collectives_mean_uneven_shards_included(mesh, tmp_path):
    everything = all_programs(mesh)
    chosen = random.Random(0).sample(everything, min(len(everything), 150))
    assert {program.kind for program in chosen} >= set(KINDS) - {"permute"}
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randint(0, 2, p.shape, generator=generator).bool()
        if p.dtype == "i1"
        else torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for p in chosen
    ]
    outputs = on_ranks(mesh.world_size, run_programs, tmp_path, mesh, chosen, inputs)
    for index, (program, x) in enumerate(zip(chosen, inputs, strict=True)):
        shards = [results[index] for results in outputs]
        for rank, shard in enumerate(shards):
            local = program.target.local_shape(program.shape, mesh, mesh.coordinate(rank))
            assert shard.shape == local, program.text
        torch.testing.assert_close(
            collect(shards, program.target, mesh, x.shape), x, msg=lambda m, p=program: f"{p.text}\n{m}"
        )
