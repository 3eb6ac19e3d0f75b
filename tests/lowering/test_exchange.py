"""Exchanges in one and two rounds, lowered and simulated on every rank, between any two shardings."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.lowering.emit import lower_to_fx
from spmdir.report.communication import comm_report
from spmdir.reshard.collectives import collective
from spmdir.reshard.multi_axis_steps import find_obstacle
from spmdir.reshard.steps import make_step
from spmdir.simulator.simulate import simulate
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.lowering import declared_placements
from tests.lowering.collective_programs import Program, ascending, assert_values_kept, shardings
from tests.lowering.random_reshards import is_reachable

SHAPES = ((8, 12), (7, 5), (1, 3), (2, 0))
KINDS = ("exchange", "two_round_exchange")
CUBE = Mesh({"a": 2, "b": 2, "c": 2})

assert declared_placements.Root.trait == "partial"  # texts name its placements


@pytest.mark.parametrize("op", ["sum", "max", "avg"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", [Mesh({"a": 3}), Mesh({"a": 2, "b": 3}), CUBE], ids=str)
def test_one_step_makes_any_sharding_of_any_other(mesh: Mesh, kind: str, op: str) -> None:
    pairs = list(itertools.permutations(shardings(mesh, 2, (op,)), 2))
    chosen = enumerate(random.Random(0).sample(pairs, min(len(pairs), 40)))
    programs = [
        Program(mesh, kind, "", source, target, SHAPES[number % len(SHAPES)])
        for number, (source, target) in chosen
        if not find_obstacle(collective(kind), source, target)
    ]
    assert assert_values_kept(programs, lambda program: ascending(program) - 10)


@pytest.mark.parametrize("placement", ["Root(2)", "Norm(2)", "Norm(inf)", "Masked"])
@pytest.mark.parametrize("kind", KINDS)
def test_partial_values_of_plugins_are_exchanged_as_sums_are(kind: str, placement: str) -> None:
    pairs = itertools.permutations(shardings(CUBE, 2, ("sum",)), 2)
    texts = [[str(side).replace("P(sum)", placement) for side in pair] for pair in pairs]
    partial = [pair for pair in texts if placement in " ".join(pair) and is_reachable(*map(parse_sharding, pair))]
    chosen = enumerate(random.Random(0).sample(partial, 12))
    programs = [
        Program(CUBE, kind, "", parse_sharding(source), parse_sharding(target), SHAPES[number % len(SHAPES)])
        for number, (source, target) in chosen
    ]
    assert_values_kept(programs, lambda program: ascending(program) - 1)


@pytest.mark.parametrize(
    ("kind", "source", "target", "message"),
    [
        ("exchange", "a: P(sum), b: S(0)", "b: Masked, a: S(0)", "create Masked together with P.sum."),
        ("exchange", "b: S(0), c: S(1)", "b: Masked, c: P(sum)", "create Masked together with P"),
        (
            "exchange",
            "a: Linear, b: Linear",
            "c: S(0)",
            "reduce Linear over several axes at once",
        ),
        (
            "two_round_exchange",
            "b: S(0), c: Linear",
            "b: S(1), c: Linear",
            "reduce Linear over several axes at once",
        ),
    ],
)
def test_partial_values_that_cannot_be_combined_chunk_by_chunk_are_not_exchanged(
    kind: str, source: str, target: str, message: str
) -> None:
    with pytest.raises(ShardingError, match=message):
        make_step(kind, parse_sharding(source), CUBE, (8, 8), target=parse_sharding(target))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "op"), [("i1", "any"), ("i1", "all"), ("bf16", "sum"), ("i64", "max"), ("ui8", "min")]
)
def test_reductions_work_on_every_element_type_they_have_a_meaning_on(kind: str, dtype: str, op: str) -> None:
    source = parse_sharding(f"b: S(0), c: P({op})")
    for target in map(parse_sharding, (f"a: S(0), b: S(1), c: P({op})", "a: S(0), c: S(0)")):
        x = torch.randint(0, 2, (4, 6), generator=torch.Generator().manual_seed(0)).to(TORCH_DTYPES[DTYPES[dtype]])
        (y,) = simulate(Program(CUBE, kind, "", source, target, (4, 6), dtype).parse(), [x])
        assert y.dtype == x.dtype
        torch.testing.assert_close(y, x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_of_whole_numbers_is_rejected(kind: str) -> None:
    program = Program(CUBE, kind, "", parse_sharding("b: S(0), c: P(avg)"), parse_sharding("a: S(0)"), (4, 6), "i64")
    with pytest.raises(SpmdirError, match="avg"):
        simulate(program.parse(), [torch.ones(4, 6, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("source", "target", "sent"),
    [
        ("b: S(0), c: P", "a: S(0), b: S(0), c: P", 2),
        ("b: S(0), c: S(0)", "c: S(0), b: P", 2),
        ("a: P", "", 2),
        ("b: S(0)", "", 1),
        ("", "a: P", 0),
        ("a: P", "a: P, b: P", 0),
    ],
)
def test_a_round_of_a_two_round_exchange_in_which_no_rank_sends_is_left_out(
    source: str, target: str, sent: int
) -> None:
    program = Program(CUBE, "two_round_exchange", "", parse_sharding(source), parse_sharding(target), (8, 8))
    for rank in range(CUBE.world_size):
        nodes = lower_to_fx(program.parse(), rank).graph.nodes
        assert sum("all_to_all" in str(node.target) for node in nodes) == sent


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a: S(0)", "a: P"),
        ("a: S(0), b: S(0)", "a: P, b: P"),
        ("b: S(0), c: P", "a: P, b: S(0), c: P"),
        ("", "a: P, b: S(1)"),
        ("a: Masked, b: S(0)", "a: Masked, b: P"),
    ],
)
def test_what_ranks_hold_is_rearranged_without_a_collective(source: str, target: str) -> None:
    program = Program(CUBE, "rearrange", "", parse_sharding(source), parse_sharding(target), (8, 8))
    x = torch.randn(8, 8, dtype=torch.float64)
    (y,) = simulate(program.parse(), [x])
    torch.testing.assert_close(y, x)
    assert comm_report(program.parse()).count == 0
    for rank in range(CUBE.world_size):
        assert not any("c10d" in str(node.target) for node in lower_to_fx(program.parse(), rank).graph.nodes)
