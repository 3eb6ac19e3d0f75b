"""Placements that the compiler does not know, on real ranks: as lowered in each process and as Python text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spmdir import parallelize
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.simulator.distribution import collect, distribute
from spmdir.tools.spmd_translate import emit_fx
from tests.lowering import declared_placements
from tests.lowering.collective_programs import Program
from tests.lowering.gloo_ranks import on_ranks, run_programs
from tests.lowering.reshard_programs import bits
from tests.runtime.parallelize_cases import local

pytestmark = pytest.mark.gloo

MESH = Mesh({"a": 2, "b": 2})
CASES = (
    ("slice", "on [a, b] dim 0", "", "a: Dealt(0, 1), b: Backwards(0)"),
    ("all_gather", "on [a, b] dim 0", "a: Dealt(0, 1), b: Backwards(0)", ""),
    ("all_gather", "on [b] dim 1", "a: S(1), b: Dealt(1, 1)", "a: S(1)"),
    ("reduce_scatter", "on [b, a] dim 0 op sum", "a: P, b: P", "b: Steep(0), a: Dealt(0, 2)"),
    ("all_to_all", "on [a, b] from 0 to 1", "a: Dealt(0, 1), b: S(0)", "a: S(1), b: Backwards(1)"),
    ("exchange", "", "a: Dealt(0, 1), b: Backwards(1)", "a: Steep(1), b: S(0)"),
    ("all_reduce", 'on [a, b] op "Root(2)"', "a: Root(2), b: Root(2)", ""),
    ("convert", "", "b: Thirds", "b: Backwards(0)"),
    ("convert", "", "a: First", ""),
    ("convert", "", "a: S(1), b: First", "a: S(1)"),
)
PROGRAMS = tuple(
    Program(MESH, kind, clauses, parse_sharding(source), parse_sharding(target), (11, 9))
    for kind, clauses, source, target in CASES
)


def values() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(p.shape, generator=generator, dtype=torch.float64) for p in PROGRAMS]


def check(outputs: list[list[torch.Tensor]]) -> None:
    assert declared_placements.First.text  # the module declares the placements of the programs
    for index, (program, x) in enumerate(zip(PROGRAMS, values(), strict=True)):
        shards = [results[index] for results in outputs]
        if program.source.partial or program.kind == "convert":
            torch.testing.assert_close(collect(shards, program.target, MESH, x.shape), x, msg=program.text)
            continue
        for shard, wanted in zip(shards, distribute(x, program.target, MESH, torch.zeros_like), strict=True):
            assert torch.equal(bits(shard), bits(wanted)), program.text


def text() -> str:
    """One program that does what all of them do, each on an argument of its own."""
    shardings = ["@mesh, " * bool(source.entries) + str(source) or "@mesh" for source in sources()]
    values = [f"tensor<11x9xf64> {{spmd.sharding = #spmd.sharding<{sharding}>}}" for sharding in shardings]
    lines = [
        f"  %y{index} = spmd.{p.kind} %x{index} {p.clauses} : tensor<11x9xf64> <{p.target}>"
        for index, p in enumerate(PROGRAMS)
    ]
    arguments = ", ".join(f"%x{index}: {value}" for index, value in enumerate(values))
    types = ", ".join(["tensor<11x9xf64>"] * len(PROGRAMS))
    returned = ", ".join(f"%y{index}" for index in range(len(PROGRAMS)))
    body = "\n".join([*lines, f"  return {returned} : {types}"])
    return f"spmd.mesh @mesh {MESH}\nfunc.func @main({arguments}) -> ({types}) {{\n{body}\n}}\n"


def sources() -> list[Sharding]:
    return [program.source for program in PROGRAMS]


def run_text(rank: int, texts: list[str], inputs: list[torch.Tensor]) -> Any:
    """What this rank's program in Python makes of its shards of the inputs."""
    names: dict[str, Any] = {}
    exec(texts[rank], names)
    names["connect"]()
    held = [distribute(x, source, MESH, torch.zeros_like)[rank] for x, source in zip(inputs, sources(), strict=True)]
    return names[f"Rank{rank}"]()(*held)


def test_real_ranks_compute_what_placements_declare(tmp_path: Any) -> None:
    check(on_ranks(4, run_programs, tmp_path, MESH, PROGRAMS, values()))


def test_programs_in_python_compute_what_placements_declare(tmp_path: Any) -> None:
    texts = [emit_fx(text(), "program", rank) for rank in range(4)]
    assert any("index_select" in text for text in texts)
    check(on_ranks(4, run_text, tmp_path, texts, values()))


def parallel(rank: int) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any]]:
    """The outputs of a model whose weights lie in all manners, its whole state, and what this rank has of it."""
    model, x = perceptron()
    parallel = parallelize(model, MESH, SHARDINGS, (x,))
    return parallel(x), parallel.state_dict(), {name: local(held) for name, held in parallel.state.items()}


SHARDINGS = {
    "0.weight": "a: Dealt(0, 2), b: Backwards(1)",
    "0.bias": "a: Dealt(0, 2), b: First",
    "2.weight": "b: Dealt(1, 5), a: Steep(0)",
    "2.bias": "a: Backwards(0)",
}


def perceptron() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 6))
    return model.double(), torch.randn(4, 8, dtype=torch.float64)


def test_a_model_whose_weights_lie_in_any_manner_computes_the_same(tmp_path: Any) -> None:
    model, x = perceptron()
    state = model.state_dict()
    for rank, (output, whole, own) in enumerate(on_ranks(4, parallel, tmp_path)):
        torch.testing.assert_close(output, model(x))
        for name, sharding in SHARDINGS.items():
            assert torch.equal(whole[name], state[name])
            held = distribute(state[name], parse_sharding(sharding), MESH, torch.zeros_like)
            assert torch.equal(own[name], held[rank])
