"""What DTensor's redistribution could do, and where it is wrong; docs/reference-systems.md numbers its capabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding, parse_sharding
from tests.lowering.collective_programs import Program

ONE, FOUR, SIX = Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3})
DEEP, TALL = Mesh({"a": 2, "b": 4}), Mesh({"a": 4, "b": 2})


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def moved(x: Tensor, source: str, target: str, mesh: Mesh) -> Tensor:
    """`x` after a reshard that all ranks carry out."""
    dtype = {torch.float64: "f64", torch.bool: "i1", torch.int64: "i64"}[x.dtype]
    before, after = (parse_sharding(side).merged(mesh) for side in (source, target))
    return spmdir.simulate(Program(mesh, "reshard", "", before, after, tuple(x.shape), dtype).parse(), [x])[0]


ONE_STEP = [
    ("P(sum)", "R", "all_reduce on [a] op sum"),
    ("P(avg)", "R", "all_reduce on [a] op avg"),
    ("P(max)", "R", "all_reduce on [a] op max"),
    ("S(0)", "R", "all_gather on [a] dim 0"),
    ("S(1)", "R", "all_gather on [a] dim 1"),
    ("P(sum)", "S(1)", "reduce_scatter on [a] dim 1 op sum"),
    ("R", "S(0)", "slice on [a] dim 0"),
    ("S(0)", "S(1)", "all_to_all on [a] dim 0 to 1"),
    ("R", "P(sum)", "partition on [a] op sum"),
    ("R", "P(product)", "partition on [a] op product"),
    ("S(1)", "S(1)", ""),
    ("P(min)", "P(min)", ""),
]


@pytest.mark.parametrize(("source", "target", "step"), ONE_STEP)
def test_a_move_on_one_axis_is_the_collective_for_it(source: str, target: str, step: str) -> None:
    """Items 7 and 13, of even shards; the values hold of uneven ones too."""
    assert str(spmdir.plan_reshard((8, 8), "f64", f"a: {source}", f"a: {target}", ONE)) == step
    for x in (values(8, 8), values(7, 3)):
        torch.testing.assert_close(moved(x, f"a: {source}", f"a: {target}", ONE), x)


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "product"])
@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (1, 4)])
def test_a_sharded_value_becomes_partial_without_communication(reduction: str, shape: tuple[int, ...]) -> None:
    """Item 13: DTensor raises, or replicates in the backward; here a rank puts what it has among identities."""
    x = values(*shape)
    assert spmdir.plan_reshard(shape, "f64", "a: S(0)", f"a: P({reduction})", ONE).wire_bytes == 0
    torch.testing.assert_close(moved(x, "a: S(0)", f"a: P({reduction})", ONE), x)


@pytest.mark.parametrize("mesh", [FOUR, SIX, Mesh({"a": 3, "b": 2}), Mesh({"a": 2, "b": 2, "c": 2})], ids=str)
def test_one_gather_of_nested_uneven_shards_loses_no_row(mesh: Mesh) -> None:
    """DTensor's gather over a flattened mesh drops rows here, silently."""
    for order in (mesh.axis_names, mesh.axis_names[::-1]):
        nested = ", ".join(f"{axis}: S(0)" for axis in order)
        for rows in range(2 * mesh.world_size):
            plan = spmdir.plan_reshard((rows, 2), "f64", nested, "", mesh)
            assert len(plan.steps) == 1
            assert torch.equal(moved(values(rows, 2), nested, "", mesh), values(rows, 2))


@pytest.mark.parametrize("rows", [8, 7, 3])
def test_axes_are_reduced_and_scattered_at_once_in_any_order(rows: int) -> None:
    """2.13 merges axes in ascending order, evenly, and only if the flattened mesh was made before."""
    partial, nested = "a: P(sum), b: P(sum)", "b: S(0), a: S(0)"
    plan = spmdir.plan_reshard((rows, 5), "f64", partial, nested, SIX)
    assert str(plan) == "reduce_scatter on [b, a] dim 0 op sum"
    torch.testing.assert_close(moved(values(rows, 5), partial, nested, SIX), values(rows, 5))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a: S(0), b: S(1)", "a: S(1), b: S(0)"),
        ("a: S(0), b: S(0)", "b: S(0), a: S(0)"),
        ("b: S(0), a: S(0)", "b: S(0)"),
        ("a: S(0), b: S(0)", "b: S(0)"),
        ("b: S(1), a: S(1)", "a: S(1), b: S(1)"),
        ("a: S(0), b(1)2: S(0), b(2)2: S(1)", "b: S(0)"),
    ],
)
def test_nested_orders_are_moved_into_each_other(source: str, target: str) -> None:
    """Items 9 to 11: one search knows every nesting order, and shards are partitioned as they nest."""
    for shape in ((8, 16), (7, 5)):
        x = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(moved(x, source, target, DEEP), x)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a: S(0)", "a: Masked"),
        ("a: P(sum)", "a: Masked"),
        ("b: S(1)", "a: Masked"),
        ("a: Masked, b: S(0)", "a: S(0)"),
        ("a: Masked", "a: P(sum)"),
        ("a: S(0)", "a: Strided(0, 2)"),
        ("a: Strided(0, 2), b: S(0)", "a: S(0), b: S(0)"),
        ("a: P(sum), b: S(0)", "b: Strided(0, 3)"),
        ("b: Strided(0, 2)", "b: S(1)"),
    ],
)
def test_masked_sums_and_strided_shards_are_reached_as_others_are(source: str, target: str) -> None:
    """Item 8: DTensor has no path to `MaskPartial`, and goes from and to `_StridedShard` by way of replicated."""
    for x in (values(8, 16), values(7, 5)):
        torch.testing.assert_close(moved(x, source, target, DEEP), x)


def test_a_sharding_is_a_value_with_one_text() -> None:
    """Items 3 and 4: equal shardings are one key, other nesting orders are others, replicated axes are left out."""
    texts = ["b: P(sum), c: S(1), a: S(1)", "c: S(1), a: S(1), b: P", "d: R, c: S(1), b: P(sum), a: S(1)"]
    same = {parse_sharding(text) for text in texts}
    assert {str(sharding) for sharding in same} == {"c: S(1), a: S(1), b: P(sum)"}
    (one,) = same
    assert (one.dim_axes(0), one.dim_axes(1)) == ((), ("c", "a"))
    assert one != parse_sharding("a: S(1), c: S(1), b: P(sum)")


def test_placements_of_dtensor_nest_as_their_mesh_does() -> None:
    """Item 4: without a shard order, the outer axis of the mesh cuts first."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    assert str(as_sharding([Shard(0), Shard(0)], FOUR)) == "a: S(0), b: S(0)"
    strided = as_sharding([_StridedShard(0, split_factor=2), Shard(0)], FOUR)
    for rows in (8, 6):
        assert spmdir.plan_reshard((rows, 4), "f64", strided, "b: S(0), a: S(0)", FOUR).wire_bytes == 0
    assert str(as_sharding([Replicate(), Partial("avg")], FOUR)) == "b: P(avg)"
    with pytest.raises(ParseError, match="has no counterpart"):
        as_sharding([object(), Shard(0)], FOUR)


def test_equal_questions_have_one_plan_while_tracing_too() -> None:
    """Item 2: plans are known by values, so neither the age of a mesh nor a trace matters."""
    question = ((12, 8), "f32", "a: S(0)", "b: S(1)")
    known = spmdir.plan_reshard(*question, Mesh({"a": 2, "b": 4}))
    found: list[Any] = []
    make_fx(lambda x: found.append(spmdir.plan_reshard(*question, Mesh({"a": 2, "b": 4}))) or x)(values(2))
    assert found[0] is known
    assert spmdir.plan_reshard(*question, Mesh({"a": 4, "b": 2})) is not known


def test_constants_of_ones_own_machine_decide(tmp_path: Path) -> None:
    """Item 6: where starting a collective is dear, ranks that hold the same do not share the work of a reduction."""
    found = []
    for latency in (1e-9, 1.0):
        machine = tmp_path / f"latency_{latency}.toml"
        machine.write_text(
            f"intra_bandwidth = 1e9\ninter_bandwidth = 1e9\nbase_latency = {latency}\nintra_latency = 0\n"
            "inter_latency = 0\nmemory_bandwidth = 1e12\n"
        )
        found.append(spmdir.plan_reshard((4096, 4096), "f32", "a: P", "", TALL, topology=str(machine)))
    quick, dear = found
    assert len(quick.steps) > len(dear.steps) == 1
    assert quick.wire_bytes < dear.wire_bytes


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a: P(sum), b: P(max)", "", "do not commute"),
        ("", "a: P(sum), b: P(product)", "do not commute"),
        (Sharding((), mesh="other"), "", "is on mesh @other; expected mesh @mesh"),
    ],
)
def test_mixed_reductions_and_other_meshes_are_rejected(source: Any, target: str, message: str) -> None:
    """Item 12, and the ban of 2.13."""
    with pytest.raises(ShardingError, match=message):
        spmdir.plan_reshard((4, 4), "f32", source, target, FOUR)
