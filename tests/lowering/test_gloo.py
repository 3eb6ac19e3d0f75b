"""Every collective between real processes."""

import random
import re

import attrs
import pytest
import torch

from benchmarks.programs import Config, shardings, trace
from spmdir import import_fx, print_ir, run_passes
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.ir import main_function, parse
from spmdir.dialects.values import sharding_of
from spmdir.simulator.distribution import collect, distribute
from tests.fuzz.schedules import random_schedule
from tests.lowering.collective_programs import Program, programs
from tests.lowering.gloo_ranks import on_ranks, run_programs, run_texts
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


def test_a_training_step_gives_real_ranks_the_same_in_any_schedule(tmp_path):
    mesh = Mesh({"data": 2, "model": 2})
    config = Config(layers=1, dim=16, heads=2, kv_heads=2, ffn=24, seq=16, batch=8, vocab=12)
    given, residual = shardings(config, "tp_fsdp")
    graph, (parameters, tokens, labels), *_ = trace(config, residual, torch.float64, fake=False)
    module = import_fx(graph, mesh, given)
    run_passes(module, "propagate{memory=none,topology=flat},insert-reshard,lower-reshard,localize")
    arguments = zip([*parameters.values(), tokens, labels], main_function(module).args, strict=True)
    held = [distribute(x, sharding_of(value) or Sharding(), mesh, torch.randn_like) for x, value in arguments]
    torch.save(held, tmp_path / "inputs")
    texts = [print_ir(module)]
    random_schedule(module, random.Random(1))
    texts += [print_ir(module), print_ir(run_passes(parse(texts[0]), "schedule"))]
    assert min(text.count("_start") for text in texts[1:]) > 2 and re.search(r"%[\w.]+, %[\w.]+ = spmd.wait", texts[1])
    for plain, *others in on_ranks(mesh.world_size, run_texts, tmp_path, mesh, texts, tmp_path / "inputs"):
        assert plain[0] > 0 and all(all(map(torch.equal, plain, other)) for other in others)
