"""Which steps are legal, what they make, and what an error says."""

from __future__ import annotations

import re

import pytest

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.reshard.collectives import collective, collectives
from spmdir.reshard.moved_axes import permuted_axes
from spmdir.reshard.multi_axis_steps import check_permute, permute_senders
from spmdir.reshard.steps import make_step, transition

MESH = Mesh({"a": 2, "b": 2, "c": 4})
SHAPE = (16, 16)

LEGAL = [
    ("slice", "", {"axes": ["a"], "dim": 0}, "a: S(0)"),
    ("slice", "c: S(0)", {"axes": ["b", "a"], "dim": 0}, "c: S(0), b: S(0), a: S(0)"),
    ("slice", "c: P(max)", {"axes": ["a"], "dim": 1}, "a: S(1), c: P(max)"),
    ("all_gather", "a: S(0), b: S(0)", {"axes": ["b"], "dim": 0}, "a: S(0)"),
    ("all_gather", "c: S(0), a: S(0), b: S(0)", {"axes": ["a", "b"], "dim": 0}, "c: S(0)"),
    ("all_to_all", "a: S(0), b: S(1)", {"axes": ["a"], "dim": 0, "to_dim": 1}, "b: S(1), a: S(1)"),
    ("all_to_all", "a: S(0), b: S(0)", {"axes": ["a", "b"], "dim": 0, "to_dim": 1}, "a: S(1), b: S(1)"),
    ("all_reduce", "a: P(sum), b: S(0)", {"axes": ["a"]}, "b: S(0)"),
    ("all_reduce", "a: P(sum), b: P(avg)", {"axes": ["b", "a"], "reduction": "sum"}, ""),
    ("all_reduce", "a: P(max), b: P(max)", {"axes": ["b"], "reduction": "max"}, "a: P(max)"),
    ("reduce_scatter", "a: P, b: S(0)", {"axes": ["a"], "dim": 0}, "b: S(0), a: S(0)"),
    ("reduce_scatter", "a: P, b: P", {"axes": ["b", "a"], "dim": 1, "reduction": "sum"}, "b: S(1), a: S(1)"),
    ("partition", "b: S(0)", {"axes": ["a", "c"], "reduction": "sum"}, "b: S(0), a: P, c: P"),
    ("partition", "b: P(avg)", {"axes": ["a"], "reduction": "sum"}, "a: P, b: P(avg)"),
    ("permute", "a: S(0), b: S(0)", {"target": "b: S(0), a: S(0)"}, "b: S(0), a: S(0)"),
    ("permute", "a: S(0), c: P", {"target": "b: S(0), c: P"}, "b: S(0), c: P"),
    ("permute", "a: S(0), b: S(0)", {"target": "c: S(0)"}, "c: S(0)"),
    ("exchange", "a: S(0), b: S(1)", {"target": "b: S(0), c: S(0)"}, "b: S(0), c: S(0)"),
    ("exchange", "a: P, b: P(avg)", {"target": "c: P, b: S(1)"}, "c: P, b: S(1)"),
    ("rearrange", "a: S(0)", {"target": "a: P"}, "a: P"),
    ("two_round_exchange", "b: S(0), c: P", {"target": "a: S(0), b: S(0), c: P"}, "a: S(0), b: S(0), c: P"),
    ("slice", "b: S(0)", {"axes": ["a"], "dim": 0, "target": "a: Cyclic(0, 2)"}, "b: S(0), a: Cyclic(0, 2)"),
    ("all_gather", "b: S(0), a: Cyclic(0, 2)", {"axes": ["a"], "dim": 0}, "b: S(0)"),
    ("exchange", "b: S(0)", {"target": "b: Cyclic(1, 3)"}, "b: Cyclic(1, 3)"),
    ("broadcast", "b: S(0)", {"axes": ["a"]}, "b: S(0)"),
    ("convert", "a: P(avg), c: P", {"target": "a: P, c: P"}, "a: P, c: P"),
    ("convert", "a: P, b: P", {"target": "a: Quantised, b: Quantised"}, "a: Quantised, b: Quantised"),
]

ILLEGAL = [
    ("shuffle", "", {"axes": ["a"]}, "unknown collective 'shuffle'; expected one of slice"),
    ("slice", "", {"axes": [], "dim": 0}, "slice has the mesh axes []; expected at least one axis, and each axis once"),
    (
        "slice",
        "",
        {"axes": ["a", "a"], "dim": 0},
        "slice has the mesh axes [a, a]; expected at least one axis, and each axis once",
    ),
    ("slice", "", {"axes": ["z"], "dim": 0}, "axis 'z' is not in mesh @mesh <a = 2, b = 2, c = 4>"),
    ("slice", "", {"axes": ["a"], "dim": 2}, "slice has dimension 2; expected a dimension of a tensor of rank 2"),
    ("slice", "", {"axes": ["a"]}, "slice has dimension None; expected a dimension of a tensor of rank 2"),
    ("slice", "a: S(1)", {"axes": ["a"], "dim": 0}, "slice requires 'a' to be replicated; found S(1)"),
    ("slice", "a: ?", {"axes": ["a"], "dim": 0}, "slice requires 'a' to be replicated; found ?"),
    ("partition", "a: P", {"axes": ["a"], "reduction": "sum"}, "partition requires 'a' to be replicated; found P(sum)"),
    ("partition", "", {"axes": ["a"]}, "partition has no reduction"),
    ("partition", "", {"axes": ["a"], "reduction": "median"}, "unknown reduction 'median'"),
    ("partition", "b: P(max)", {"axes": ["a"], "reduction": "sum"}, "do not commute"),
    ("all_gather", "a: S(0), b: S(0)", {"axes": ["a"], "dim": 0}, "innermost axes of dimension 0 in nesting order"),
    ("all_gather", "a: S(0), b: S(0)", {"axes": ["b", "a"], "dim": 0}, "found [a, b]"),
    ("all_gather", "a: S(0)", {"axes": ["a"], "dim": 1}, "all_gather on [a] requires the innermost axes"),
    ("all_to_all", "a: S(0)", {"axes": ["a"], "dim": 0, "to_dim": 0}, "from dimension 0 to itself"),
    ("all_to_all", "a: S(0)", {"axes": ["a"], "dim": 0}, "all_to_all has dimension None"),
    ("all_reduce", "a: S(0)", {"axes": ["a"]}, "all_reduce requires 'a' to be partial; found S(0)"),
    ("all_reduce", "a: P(max)", {"axes": ["a"], "reduction": "sum"}, "all_reduce has the reduction sum; expected max"),
    ("all_reduce", "a: P(max), b: P", {"axes": ["a", "b"]}, "expected one kind"),
    ("reduce_scatter", "b: S(0)", {"axes": ["a"], "dim": 0}, "requires 'a' to be partial; found R"),
    ("permute", "a: S(0)", {}, "has no target; expected the sharding of its result"),
    ("permute", "a: S(0)", {"target": "c: S(0)"}, "blocks of equal size before and after"),
    ("permute", "a: S(0)", {"target": "a: S(1)"}, "finds no permutation of whole blocks for shape [16, 16]"),
    (
        "permute",
        "a: P",
        {"target": "b: P"},
        "cannot change partial placements, found <a: P(sum)> to <b: P(sum)>",
    ),
    ("permute", "a: S(0)", {"target": "a: S(3)"}, "shards dimension 3"),
    ("exchange", "a: S(0)", {}, "has no target; expected the sharding of its result"),
    ("exchange", "a: S(0)", {"target": "a: S(3)"}, "shards dimension 3"),
    (
        "exchange",
        "a: P",
        {"target": "b: P(max)"},
        "cannot turn one kind of partial value into another",
    ),
    ("exchange", "a: S(0)", {"target": "a: P(avg)"}, "cannot create P(avg), which has no identity"),
    ("rearrange", "a: S(0)", {"target": "b: S(0)"}, "ranks lack elements of <b: S(0)> in <a: S(0)>"),
    (
        "two_round_exchange",
        "a: P",
        {"target": "b: P(max)"},
        "cannot turn one kind of partial value into another",
    ),
    (
        "exchange",
        "a: Quantised",
        {"target": "a: S(0)"},
        "cannot take Quantised to S(0), which declare their own step",
    ),
    ("convert", "a: S(0)", {}, "has no target; expected the sharding of its result"),
    ("convert", "a: S(0)", {"target": "a: S(0)"}, "convert found none; expected one placement before and one after"),
    (
        "convert",
        "a: P, b: P(avg)",
        {"target": ""},
        "convert found P(avg) to R, P(sum) to R; expected",
    ),
    ("convert", "a: S(0)", {"target": "a: S(1)"}, "neither S(0) nor S(1) declares an edge from S(0) to S(1)"),
    ("convert", "a: P(avg), c: S(0), b: S(0)", {"target": "a: P, b: S(0), c: S(0)"}, "moves only ['a']"),
    ("broadcast", "a: S(0)", {"axes": ["a"]}, "broadcast requires 'a' to be replicated; found S(0)"),
    (
        "two_round_exchange",
        "a: S(0)",
        {"target": "a: P(avg)"},
        "cannot create P(avg), which has no identity",
    ),
]


def arguments(given: dict) -> dict:
    return {name: parse_sharding(value) if name == "target" else value for name, value in given.items()}


@pytest.mark.parametrize(("kind", "source", "given", "target"), LEGAL)
def test_a_legal_step_gives_its_target(kind: str, source: str, given: dict, target: str) -> None:
    found = transition(kind, parse_sharding(source), MESH, SHAPE, **arguments(given))
    assert str(found) == str(parse_sharding(target))


@pytest.mark.parametrize(("kind", "source", "given", "message"), ILLEGAL)
def test_an_illegal_step_is_rejected_and_told(kind: str, source: str, given: dict, message: str) -> None:
    with pytest.raises(ShardingError, match=re.escape(message)):
        transition(kind, parse_sharding(source), MESH, SHAPE, **arguments(given))


def test_every_kind_of_step_has_a_legal_and_an_illegal_case() -> None:
    names = {spec.name for spec in collectives()}
    assert {case[0] for case in LEGAL} == names == {case[0] for case in ILLEGAL} - {"shuffle"}


def test_a_step_knows_the_reduction_it_does_and_prints_itself() -> None:
    source = parse_sharding("a: P(sum), b: P(avg)")
    assert make_step("all_reduce", source, MESH, SHAPE, axes=("a", "b")).reduction == "sum"
    assert make_step("all_reduce", source, MESH, SHAPE, axes=("b",)).reduction == "avg"
    step = make_step("reduce_scatter", source, MESH, SHAPE, axes=("a",), dim=1)
    assert str(step) == "reduce_scatter on [a] dim 1 op sum"
    step = make_step("all_to_all", parse_sharding("a: S(0)"), MESH, SHAPE, axes=("a",), dim=0, to_dim=1)
    assert str(step) == "all_to_all on [a] dim 0 to 1"


def test_a_permute_moves_only_among_the_axes_between_the_common_outer_and_inner_ones() -> None:
    mesh = Mesh({"o": 2, "a": 2, "b": 2, "i": 2})
    source, target = (
        parse_sharding("o: S(0), a: S(0), b: S(0), i: S(0)"),
        parse_sharding("o: S(0), b: S(0), a: S(0), i: S(0)"),
    )
    assert permuted_axes(source, target, mesh) == ("a", "b")
    for rank in range(mesh.world_size):
        sender = permute_senders(source, target, mesh, (32,), rank)[rank]
        here, there = mesh.coordinate(rank), mesh.coordinate(sender)
        assert (there["a"], there["b"]) == (here["b"], here["a"])
        assert (there["o"], there["i"]) == (here["o"], here["i"])


def test_a_permute_leaves_blocks_where_they_are_if_it_can() -> None:
    mesh = Mesh({"a": 2, "b": 2})
    found = permute_senders(parse_sharding("a: S(0)"), parse_sharding("b: S(0)"), mesh, (4,), 0)
    assert found == {0: 0, 1: 2, 2: 1, 3: 3}


@pytest.mark.parametrize(("size", "legal"), [(6, True), (5, True), (4, True), (3, False), (8, False)])
def test_a_permute_of_uneven_shards_is_legal_only_if_each_rank_keeps_its_length(size: int, legal: bool) -> None:
    mesh = Mesh({"a": 2, "b": 3})
    source, target = parse_sharding("a: S(0), b: S(0)"), parse_sharding("b: S(0), a: S(0)")
    if legal:
        check_permute(collective("permute"), source, target, mesh, (size,))
        assert permute_senders(source, target, mesh, (size,), 0)[0] == 0
    else:
        with pytest.raises(ShardingError, match="finds no permutation of whole blocks"):
            check_permute(collective("permute"), source, target, mesh, (size,))
