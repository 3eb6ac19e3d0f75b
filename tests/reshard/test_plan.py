"""The plans: known optima, never below the bound, never worse than the naive way, and what is refused."""

from __future__ import annotations

import importlib
import itertools
import math
import pkgutil
import random
import subprocess
import sys

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.errors import ParseError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.plan_edges import find_moves, free_axes
from spmdir.reshard.steps import make_step
from spmdir.reshard.topology import CPU_GLOO, FLAT, H100X8, Topology
from tests.lowering import declared_placements as declared
from tests.lowering.collective_programs import shardings

EIGHT = Mesh({"a": 8})
WIDE = Mesh({"a": 2, "b": 8})
TALL = Mesh({"a": 4, "b": 2})
CUBE = Mesh({"a": 2, "b": 2, "c": 2})
FEWEST_BYTES = Topology("fewest-bytes", 1e9, 1e9, 0.0, 0.0, 0.0, 1e15)

# mesh, source, target, steps, wire bytes over lower bound
KNOWN = [
    (EIGHT, "a: S(0)", "a: S(0)", "", 0),
    (EIGHT, "", "a: S(1)", "slice on [a] dim 1", 0),
    (EIGHT, "", "a: P(max)", "partition on [a] op max", 0),
    (EIGHT, "a: S(0)", "", "all_gather on [a] dim 0", 1),
    (EIGHT, "a: S(0)", "a: S(1)", "all_to_all on [a] dim 0 to 1", 1),
    (EIGHT, "a: P", "", "all_reduce on [a] op sum", 1),
    (EIGHT, "a: P(avg)", "a: S(1)", "reduce_scatter on [a] dim 1 op avg", 1),
    (WIDE, "a: S(0), b: S(0)", "", "all_gather on [a, b] dim 0", 1),
    (WIDE, "a: P, b: P", "", "all_reduce on [a, b] op sum", 1),
    (WIDE, "a: P, b: P", "a: S(0), b: S(0)", "reduce_scatter on [a, b] dim 0 op sum", 1),
    (WIDE, "a: P, b: P", "b: S(0)", "reduce_scatter on [b] dim 0 op sum; all_reduce on [a] op sum", 1),
    (WIDE, "a: P, b: S(0)", "a: S(1)", "reduce_scatter on [a] dim 1 op sum; all_gather on [b] dim 0", 1),
    (WIDE, "a: S(0), b: S(0)", "a: S(1), b: S(1)", "all_to_all on [a, b] dim 0 to 1", 1),
    (WIDE, "a: S(0)", "b: S(0)", "exchange on [a, b]", 1),
    (WIDE, "b: S(0)", "a: S(0)", "exchange on [a, b]", 1),
    (WIDE, "b: S(0)", "a: S(0), b: S(1)", "exchange on [a, b]", 1),
    (WIDE, "a: S(0), b: S(0)", "b: S(0), a: S(0)", "permute on [a, b]", 1),
    (WIDE, "a: S(0), b: S(1)", "a: S(1), b: S(0)", "exchange on [a, b]", 1),
    (WIDE, "a: P, b: S(0)", "a: S(0), b: S(0)", "exchange on [a, b]", 1),
    (WIDE, "a: S(0)", "b: P", "exchange on [a, b]", 1),
    (TALL, "a: P, b: S(1)", "a: S(1)", "reduce_scatter on [a] dim 0 op sum; exchange on [a, b]", 1.25),
    (CUBE, "b: S(0), c: P", "a: S(0), b: S(0), c: P", "two_round_exchange on [a, b, c]", 1.5),
    (CUBE, "b: S(0), c: S(0)", "c: S(0), b: P", "two_round_exchange on [a, b, c]", 1.5),
    (CUBE, "b: S(0), c: P", "b: S(1), c: P", "two_round_exchange on [a, b, c]", 1),
    (CUBE, "b: S(0), c: P", "a: S(0), b: S(0), c: S(1)", "two_round_exchange on [a, b, c]", 1),
    (CUBE, "b: S(0), c: P", "c: P", "all_gather on [b] dim 0", 4 / 3),
]


@pytest.mark.parametrize(("mesh", "source", "target", "steps", "ratio"), KNOWN)
def test_a_large_tensor_takes_the_known_plan_of_fewest_bytes(mesh, source, target, steps, ratio) -> None:
    plan = plan_reshard((8192, 8192), "f32", source, target, mesh, FLAT)
    assert str(plan) == steps
    assert plan.wire_bytes == pytest.approx(ratio * plan.lower_bound)


def test_places_that_have_nothing_of_a_partial_sum_take_a_third_of_what_others_lack() -> None:
    plan = plan_reshard((6144, 6144), "f32", "b: S(0), c: S(0)", "a: S(0), b: P", CUBE, FLAT)
    assert str(plan) == "exchange on [a, b, c]"
    assert plan.lower_bound is not None
    assert plan.wire_bytes == pytest.approx(4 / 3 * plan.lower_bound)


def test_places_that_take_over_a_share_are_those_that_receive_least() -> None:
    mesh, source, target = Mesh(dict.fromkeys("abcd", 2)), "a: S(0), b: S(0), d: S(1)", "c: S(1), a: P, d: P"
    plan = plan_reshard((6144, 6144), "f32", source, target, mesh, FLAT)
    assert str(plan) == "exchange on [a, b, c, d]"
    assert plan.lower_bound is not None
    assert plan.wire_bytes == pytest.approx(4 / 3 * plan.lower_bound)


def test_plans_send_at_most_half_more_than_the_lower_bound() -> None:
    pairs = list(itertools.permutations(shardings(CUBE, 2), 2))
    for source, target in random.Random(0).sample(pairs, 400):
        plan = plan_reshard((6144, 6144), "f32", source, target, CUBE, FLAT)
        assert plan.lower_bound is not None
        assert plan.wire_bytes <= 1.5 * plan.lower_bound, f"<{source}> -> <{target}>: {plan}"


def test_a_small_tensor_takes_fewer_steps_and_more_bytes() -> None:
    small, large = (plan_reshard((size, size), "f32", "a: P", "", TALL, CPU_GLOO) for size in (16, 8192))
    assert str(small) == "exchange on [a]"
    assert str(large) == "slice on [b] dim 0; all_reduce on [a] op sum; all_gather on [b] dim 0"
    assert small.lower_bound is not None and large.lower_bound is not None
    assert small.wire_bytes / small.lower_bound > large.wire_bytes / large.lower_bound


def test_ranks_with_equal_values_share_the_work_of_a_reduction() -> None:
    one, many = Mesh({"node": 4, "gpu": 8}), Mesh({"node": 4, "gpu": 8}, intra_node=("gpu",))
    plans = [plan_reshard((8192, 8192), "f32", "node: P", "", mesh, H100X8) for mesh in (one, many)]
    assert str(plans[0]) == "slice on [gpu] dim 0; all_reduce on [node] op sum; all_gather on [gpu] dim 0"
    assert plans[0].wire_bytes < 2 * 3 / 4 * 4 * 8192**2
    # Between nodes a ring over both axes lets all cards of a node share what crosses.
    assert str(plans[1]) == (
        "slice on [gpu] dim 0; reduce_scatter on [node] dim 0 op sum; all_gather on [gpu, node] dim 0"
    )


def test_an_axis_that_stays_is_left_alone() -> None:
    mesh = Mesh({"dp": 2, "cp": 2, "tp": 4})
    plan = plan_reshard((64, 512, 1024), "bf16", "dp: S(0), cp: S(1), tp: P", "dp: S(0), cp: S(1), tp: S(1)", mesh)
    assert str(plan) == "reduce_scatter on [tp] dim 1 op sum"
    plan = plan_reshard((64, 64), "f32", "dp: S(0), tp: S(0)", "dp: S(0)", mesh)
    assert str(plan) == "all_gather on [tp] dim 0"


def test_addends_are_reduced_before_they_are_gathered() -> None:
    mesh = Mesh({"a": 4, "b": 2})
    plan = plan_reshard((8192, 8192), "f32", "a: S(0), b: P", "b: P", mesh, FLAT)
    assert str(plan) == "reduce_scatter on [b] dim 0 op sum; exchange on [a, b]"
    assert plan.wire_bytes == pytest.approx(plan.lower_bound)


def test_a_scalar_and_an_empty_tensor_have_plans() -> None:
    assert str(plan_reshard((), "f32", "a: P", "", EIGHT)) == "all_reduce on [a] op sum"
    assert plan_reshard((0, 4), "f32", "a: S(0)", "a: S(1)", EIGHT).wire_bytes == 0


def test_shardings_and_element_types_may_be_given_in_any_form() -> None:
    @attrs.frozen
    class Torchlike:
        itemsize: int

    text = plan_reshard((8, 8), "f64", "a: S(0)", "a: S(1)", EIGHT)
    assert text is plan_reshard([8, 8], Torchlike(8), {"a": "S(0)"}, Sharding([("a", Shard(1))]), EIGHT)
    assert text.wire_bytes == 2 * plan_reshard((8, 8), "f32", "a: S(0)", "a: S(1)", EIGHT).wire_bytes


PLACEMENTS = st.sampled_from([R, Shard(0), Shard(1), Partial("sum")])


@st.composite
def reshards(draw):
    mesh = draw(st.sampled_from([EIGHT, WIDE, TALL, Mesh({"a": 3, "b": 2}), Mesh({"a": 2, "b": 2, "c": 2})]))
    axes = mesh.axis_names
    shape = tuple(draw(st.lists(st.integers(0, 40), min_size=2, max_size=3)))
    source, target = (Sharding([(a, draw(PLACEMENTS)) for a in draw(st.permutations(axes))]) for _ in range(2))
    return shape, source, target, mesh, draw(st.sampled_from([H100X8, CPU_GLOO, FEWEST_BYTES]))


@settings(max_examples=300)
@given(reshards())
def test_no_plan_sends_less_than_the_lower_bound(case) -> None:
    shape, source, target, mesh, topology = case
    plan = plan_reshard(shape, "f32", source, target, mesh, topology)
    assert plan.lower_bound is not None
    assert plan.wire_bytes >= plan.lower_bound * (1 - 1e-12)


def naive_steps(shape, source: Sharding, target: Sharding, mesh: Mesh):
    """Everything to R, one axis at a time, then everything from R."""
    here = source
    for axis, placement in reversed(source.entries):
        kind, given = ("all_reduce", {}) if placement.trait == "partial" else ("all_gather", {"dim": placement.dim})
        yield make_step(kind, here, mesh, shape, axes=(axis,), **given)
        here = here.replace(axis, R)
    for axis, placement in target.entries:
        given = {"reduction": placement.op} if placement.trait == "partial" else {"dim": placement.dim}
        step = make_step("partition" if "reduction" in given else "slice", here, mesh, shape, axes=(axis,), **given)
        yield step
        here = step.target
    assert here == target


@settings(max_examples=300)
@given(reshards())
def test_no_plan_is_slower_than_going_through_replicated(case) -> None:
    shape, source, target, mesh, topology = case
    if source == target:
        return
    plan = plan_reshard(shape, "f32", source, target, mesh, topology)
    naive = [step_cost(step, shape, 4, mesh, topology) for step in naive_steps(shape, source, target, mesh)]
    assert plan.seconds <= math.fsum(cost.seconds for cost in naive) + len(naive) * 1e-12


@pytest.mark.parametrize(
    ("source", "target", "plan"),
    [
        ("a: P(max)", "a: P(sum)", "reduce_scatter on [a] dim 0 op max; rearrange on [a]"),
        ("a: P(sum)", "b: P(min)", "slice on [b] dim 0; all_reduce on [a] op sum; rearrange on [b]"),
        ("a: P(sum)", "a: S(0), b: P(min)", "slice on [b] dim 1; reduce_scatter on [a] dim 0 op sum; rearrange on [b]"),
    ],
)
def test_a_reduction_is_done_before_one_of_another_kind_is_pending(source, target, plan) -> None:
    assert str(plan_reshard((16, 16), "f32", source, target, WIDE, FLAT)) == plan


@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        ("a: P(sum), b: P(max)", "", ShardingError, "do not commute"),
        ("a: ?", "", ShardingError, "a reshard cannot have the open placement ? on axis 'a'"),
        ("", "a: S(2)", ShardingError, "shards dimension 2 of a tensor of rank 2"),
        ("z: S(0)", "", ShardingError, "axis 'z' is not in mesh"),
        ("a: Q", "", ParseError, "unknown placement"),
        (Sharding([("a", Shard(0))], mesh="other"), "", ShardingError, "is on mesh @other; expected mesh @mesh"),
    ],
)
def test_what_cannot_be_planned_is_rejected(source, target, error, message) -> None:
    with pytest.raises(error, match=message.replace("?", r"\?")):
        plan_reshard((16, 16), "f32", source, target, WIDE)


def test_an_unknown_element_type_is_rejected() -> None:
    with pytest.raises(SpmdirError, match="unknown element type 'float31'; expected one of f64"):
        plan_reshard((16, 16), "float31", "", "", WIDE)


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "from spmdir.core.mesh import Mesh; from spmdir.reshard.plan import plan_reshard\n"
        "mesh = Mesh({'a': 2, 'b': 2, 'c': 2})\n"
        "for s, d in (('a: S(0), b: S(1)', 'c: S(0), a: S(1)'), ('a: P, c: S(0)', 'b: S(0)')):\n"
        "    print(plan_reshard((7, 64), 'f32', s, d, mesh))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


def test_planning_needs_neither_torch_nor_xdsl() -> None:
    script = "import sys, spmdir.reshard.plan; sys.exit('torch' in sys.modules or 'xdsl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": "."}, check=False).returncode == 0


def test_an_axis_of_one_rank_that_stays_replicated_is_not_searched() -> None:
    mesh, source, target = Mesh({"a": 2, "one": 1, "b": 2}), parse_sharding("a: S(0)"), parse_sharding("b: S(1)")
    assert free_axes(source, target, mesh) == ("a", "b")
    assert free_axes(parse_sharding("one: S(0)"), target, mesh) == ("a", "one", "b")


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        ("a: P(sum)", "a: GatheredSum", "convert on [a]"),
        ("a: P(sum), b: P(sum)", "a: P(sum), b: GatheredSum", "convert on [b]"),
        ("a: Thirds", "a: P(sum)", "convert on [a]"),
        ("a: Thirds, b: S(0)", "a: P(sum), b: S(0)", "convert on [a]"),
    ],
)
def test_a_declared_step_that_sends_nothing_is_taken_whatever_its_kind(source: str, target: str, steps: str) -> None:
    plan = plan_reshard((16, 16), "f32", source, target, TALL)
    assert (str(plan), plan.wire_bytes) == (steps, 0)


def test_a_step_that_changes_nothing_tells_the_kind_and_one_that_computes_does_not() -> None:
    assert declared.GatheredSum().kind == "sum"
    assert declared.Thirds().kind == "Thirds"
    with pytest.raises(ShardingError, match="do not commute"):
        plan_reshard((16, 16), "f32", "a: P(sum), b: Thirds", "", TALL)


@pytest.mark.parametrize(
    ("mesh", "source", "target", "placement"),
    [
        (*case, placement)
        for *case, makes_partial in [
            (WIDE, "a: P(sum), b: P(sum)", "a: S(0), b: S(0)", False),
            (WIDE, "a: P(sum)", "a: Cyclic(0, 2)", False),
            (WIDE, "a: P(sum), b: S(0)", "a: S(0), b: S(0)", False),
            (WIDE, "a: S(0)", "b: P(sum)", True),
            (CUBE, "b: S(0), c: P(sum)", "a: S(0), b: S(0), c: P(sum)", False),
            (CUBE, "b: S(0), c: S(0)", "c: S(0), b: P(sum)", True),
            (CUBE, "b: S(0), c: P(sum)", "a: S(0), b: S(0), c: S(1)", False),
        ]
        for placement in ["Root(2)", "Masked", *([] if makes_partial else ["Norm(2)"])]
    ],
)
def test_partial_values_of_plugins_take_the_plans_of_sums(placement: str, mesh: Mesh, source: str, target: str) -> None:
    plans = [
        plan_reshard((8192, 8192), "f32", source.replace("P(sum)", text), target.replace("P(sum)", text), mesh)
        for text in ("P(sum)", placement)
    ]
    assert [step.kind for step in plans[1].steps] == [step.kind for step in plans[0].steps]
    assert plans[1].wire_bytes == plans[0].wire_bytes


@pytest.mark.parametrize("source", ["", "b: S(0)", "b: P(sum)", "b: Norm(2)"])
def test_no_value_is_made_a_partial_norm_as_it_may_be_negative(source: str) -> None:
    with pytest.raises(ShardingError, match=r"Norm\(2\)"):
        plan_reshard((8, 8), "f32", source, "a: Norm(2)", WIDE)


def test_tensors_of_other_ranks_that_are_sharded_alike_share_the_steps_from_a_sharding() -> None:
    find_moves.cache_clear()
    plan_reshard((64, 128, 8), "f32", "a: S(0), b: S(1)", "a: S(0)", WIDE)
    misses = find_moves.cache_info().misses
    plan_reshard((64, 128, 8, 2), "f32", "a: S(0), b: S(1)", "a: S(0)", WIDE)
    assert find_moves.cache_info().misses == misses


@pytest.mark.parametrize("package", ["reshard", "search"])
def test_what_is_kept_of_shardings_and_topologies_is_bounded(package: str) -> None:
    names = [info.name for info in pkgutil.iter_modules([f"{spmdir.__path__[0]}/{package}"])]
    modules = [importlib.import_module(f"spmdir.{package}.{name}") for name in names]
    values = [v for m in modules for v in vars(m).values() if getattr(v, "__module__", None) == m.__name__]
    values += [member for value in values if isinstance(value, type) for member in vars(value).values()]
    kept = [value for value in values if hasattr(value, "cache_parameters")]
    assert kept
    assert [value for value in kept if value.cache_parameters()["maxsize"] is None] == []
