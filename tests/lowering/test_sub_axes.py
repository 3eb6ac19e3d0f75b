"""Collectives and plans over sub-axes: simulated, and between real processes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.dialects.ir import parse, print_ir
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.steps import transition
from spmdir.simulator.distribution import collect
from spmdir.simulator.simulate import simulate
from tests.lowering.collective_programs import Program, assert_values_kept, joined, programs
from tests.lowering.gloo_ranks import on_ranks, run_programs
from tests.lowering.test_collectives import KINDS

FOUR, EIGHT = Mesh({"a": 4}), Mesh({"b": 2, "a": 4})
SPLITS = {4: (("{}",), ("{}(1)2", "{}(2)2")), 6: (("{}",), ("{}(1)2", "{}(2)3"), ("{}(1)3", "{}(3)2")), 2: (("{}",),)}


def split_programs(mesh: Mesh, kind: str, shape: tuple[int, ...]) -> list[Program]:
    """The legal uses of a collective on a half of axis a, or on a value that a half holds, in canonical text."""
    found = []
    for program in programs(mesh.refine(["a(1)2"]), kind, shape):
        source, target = program.source.merged(mesh), program.target.merged(mesh)
        merged = attrs.evolve(program, mesh=mesh, source=source, target=target)
        if "a(" in f"{program.clauses} {source} {target}" and legal(merged):
            found.append(merged)
    return found


def legal(program: Program) -> bool:
    try:
        program.parse()
    except ShardingError as error:
        if "uneven" not in error.message:
            raise
        return False
    return True


def shardings(mesh: Mesh, ops: tuple[str, ...] = ("sum",)) -> list[Sharding]:
    """Every sharding of a matrix by the axes of `mesh`, or by parts of them, in every nesting order."""
    choices = [R, Shard(0), Shard(1), *map(Partial, ops)]
    found: dict[Sharding, None] = {}
    for parts in itertools.product(*(SPLITS[size] for _, size in mesh.axes)):
        axes = [part.format(axis) for (axis, _), row in zip(mesh.axes, parts, strict=True) for part in row]
        for order in itertools.permutations(axes):
            for placed in itertools.product(choices, repeat=len(axes)):
                found[Sharding(zip(order, placed, strict=True)).merged(mesh)] = None
    return list(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_on_a_sub_axis_keeps_the_global_value(kind: str) -> None:
    count = 0
    for mesh, shape in ((FOUR, (4, 8)), (FOUR, (7, 6)), (EIGHT, (8, 8))):
        chosen = split_programs(mesh, kind, shape)
        sample = random.Random(kind).sample(chosen, min(len(chosen), 12))
        text = print_ir(parse(joined(sample)))
        assert print_ir(parse(text)) == text
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        count += assert_values_kept(sample, lambda _, x=x: x)
    assert count > 12


def test_uneven_shards_are_not_taken_apart() -> None:
    source = Sharding([("a", Shard(0))])
    for kind, clauses in (("all_gather", {"dim": 0}), ("all_to_all", {"dim": 0, "to_dim": 1})):
        assert transition(kind, source, FOUR, (8, 4), axes=["a(2)2"], **clauses)
        with pytest.raises(ShardingError, match=r"splits <a: S\(0\)>, whose shards of \[6, 4\] are uneven"):
            transition(kind, source, FOUR, (6, 4), axes=["a(2)2"], **clauses)


EVERY = {mesh: shardings(mesh) for mesh in (FOUR, Mesh({"a": 6}), EIGHT)}
LAYOUTS = st.sampled_from(list(EVERY)).flatmap(
    lambda mesh: st.tuples(st.just(mesh), st.sampled_from(EVERY[mesh]), st.sampled_from(EVERY[mesh]))
)


@settings(max_examples=15)
@given(LAYOUTS, st.sampled_from([(8, 12), (7, 6), (3, 8)]))
def test_a_plan_between_any_two_shardings_keeps_the_value(
    layout: tuple[Mesh, Sharding, Sharding], shape: tuple[int, int]
) -> None:
    mesh, source, target = layout
    program = Program(mesh, "reshard", "", source, target, shape)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (y,) = simulate(program.parse(), [x])
    torch.testing.assert_close(y, x)


@settings(max_examples=40)
@given(LAYOUTS, st.sampled_from([(8, 12), (7, 6)]))
def test_the_steps_of_a_plan_follow_each_other_and_cost_no_less_than_the_bound(
    layout: tuple[Mesh, Sharding, Sharding], shape: tuple[int, int]
) -> None:
    mesh, source, target = layout
    plan = plan_reshard(shape, "f32", source, target, mesh)
    here = source
    for step in plan.steps:
        assert step.source == here
        given = {
            "axes": step.axes,
            "dim": step.dim,
            "to_dim": step.to_dim,
            "reduction": step.reduction,
            "target": step.target,
        }
        assert transition(step.kind, here, mesh, shape, **given) == step.target == step.target.merged(mesh)
        here = step.target
    assert here == target
    if plan.lower_bound is None:  # the bound of shards of parts of an axis is known where they are even
        assert any(size % mesh.world_size for size in shape)
        return
    assert plan.wire_bytes >= plan.lower_bound - 1e-6


def test_a_view_of_halves_costs_a_plan_nothing_more_than_what_moves() -> None:
    shape, quarter = (8, 4), 8 * 4 * 4 / 4
    whole, halves = Sharding([("a", Shard(0))]), Sharding([("a(1)2", Shard(0)), ("a(2)2", Shard(1))])
    assert str(plan_reshard(shape, "f32", whole, halves, FOUR)) == "all_to_all on [a(2)2] dim 0 to 1"
    assert plan_reshard(shape, "f32", whole, halves, FOUR).wire_bytes == quarter / 2
    kept = Sharding([("a(1)2", Shard(0))])
    assert str(plan_reshard(shape, "f32", whole, kept, FOUR)) == "all_gather on [a(2)2] dim 0"
    assert str(plan_reshard(shape, "f32", kept, whole, FOUR)) == "slice on [a(2)2] dim 0"


class Viewed(Program):
    """A view that takes a sharded dimension apart, and a reshard over one part of the axis."""

    @property
    def text(self) -> str:
        return f"""
spmd.mesh @mesh {self.mesh}

func.func @main(%x: tensor<8x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {self.source}>}})
    -> (tensor<2x4x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {self.target}>}}) {{
  %0 = aten.view(%x) {{size = [2, 4, 6]}} : tensor<2x4x6xf64>
  %1 = aten.neg(%0) : tensor<2x4x6xf64>
  return %1 : tensor<2x4x6xf64>
}}
"""


VIEWED = Viewed(FOUR, "", "", Sharding([("a", Shard(0))]), Sharding([("a(1)2", Shard(0)), ("a(2)2", Shard(2))]), (8, 6))


@pytest.mark.gloo
def test_real_ranks_compute_what_collectives_on_sub_axes_mean(tmp_path: Path) -> None:
    chosen = []
    for kind in KINDS:
        legal_ones = [p for shape in ((4, 8), (7, 6)) for p in split_programs(FOUR, kind, shape)]
        chosen += random.Random(kind).sample(legal_ones, min(len(legal_ones), 12))
    inputs = [torch.randn(p.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) for p in chosen]
    viewed = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    outputs = on_ranks(4, run_programs, tmp_path, FOUR, [*chosen, VIEWED], [*inputs, viewed])
    torch.testing.assert_close(
        collect([o[-1] for o in outputs], VIEWED.target, FOUR, (2, 4, 6)), -viewed.reshape(2, 4, 6)
    )
    for index, (program, x) in enumerate(zip(chosen, inputs, strict=True)):
        shards = [results[index] for results in outputs]
        torch.testing.assert_close(
            collect(shards, program.target, FOUR, x.shape), x, msg=lambda m, p=program: f"{p.text}\n{m}"
        )
