"""What is lowered for placements that the compiler does not know, against what they declare."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.errors import ShardingError, SpmdirError, UnsupportedError
from spmdir.core.intervals import Ranges, joined, length
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Edge, Placement, parse_placement
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.ranges import Positions, take
from spmdir.simulator.distribution import collect, distribute, local_tensor
from spmdir.simulator.lockstep import run_lockstep
from spmdir.simulator.simulate import run_single, simulate
from tests.lowering import declared_placements as declared
from tests.lowering.collective_programs import Program, axis_tuples
from tests.lowering.reshard_programs import bits

assert declared.First.trait == "other"  # its module declares the placements that texts name here

SHARDS = ("S({})", "Dealt({}, 1)", "Dealt({}, 2)", "Backwards({})", "Steep({})")
MESHES = (Mesh({"a": 2}), Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 1, "b": 3}))
MOVED = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 1.5, -float("inf")])


def run(program: Program, held: list[torch.Tensor]) -> list[torch.Tensor]:
    module = program.parse()
    graphs = [lower_to_fx(module, rank) for rank in range(program.mesh.world_size)]
    return [result for (result,) in run_lockstep(graphs, [[piece] for piece in held], program.mesh)]


def check(program: Program, x: torch.Tensor) -> None:
    """The program makes of what its source declares what its target declares."""
    held = distribute(x, program.source, program.mesh, torch.zeros_like)
    found = run(program, held)
    for rank, piece in enumerate(found):
        local = program.target.local_shape(program.shape, program.mesh, program.mesh.coordinate(rank))
        assert piece.shape == local, program.text
    if program.source.partial or program.target.partial:
        torch.testing.assert_close(collect(found, program.target, program.mesh, x.shape), x, msg=program.text)
        return
    for piece, wanted in zip(found, distribute(x, program.target, program.mesh, torch.zeros_like), strict=True):
        assert torch.equal(bits(piece), bits(wanted)), program.text


def payload(shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return MOVED.repeat(-(-count // 6) or 1)[:count].reshape(shape) + torch.arange(count).reshape(shape)


@st.composite
def programs(draw: st.DrawFn, kind: str) -> Program:
    """A collective of `kind` between shardings in which any placements nest."""
    mesh = draw(st.sampled_from(MESHES))
    shape = draw(st.tuples(st.integers(0, 9), st.integers(0, 7)))
    axes = draw(st.permutations(mesh.axis_names))
    moved = axes[draw(st.integers(0, len(axes) - 1)) :]
    dims = draw(st.permutations(range(2)))

    def divided(axes: list[str], dim: int) -> list[tuple[str, str]]:
        return [(axis, draw(st.sampled_from(SHARDS)).format(dim)) for axis in axes]

    outer = [entry for axis in axes[: -len(moved)] for entry in divided([axis], draw(st.sampled_from(dims)))]
    first, second = divided(moved, dims[0]), divided(moved, dims[1])
    on = f"on [{', '.join(moved)}]"
    pending = [(axis, "P(sum)") for axis in moved]
    before, after, clauses = {
        "slice": ([], first, f"{on} dim {dims[0]}"),
        "all_gather": (first, [], f"{on} dim {dims[0]}"),
        "reduce_scatter": (pending, first, f"{on} dim {dims[0]} op sum"),
        "all_to_all": (first, second, f"{on} from {dims[0]} to {dims[1]}"),
        "exchange": (first, second, ""),
    }[kind]
    return Program(mesh, kind, clauses, placed(outer + before), placed(outer + after), shape)


def placed(entries: list[tuple[str, str]]) -> Sharding:
    return parse_sharding(", ".join(f"{axis}: {placement}" for axis, placement in entries))


@pytest.mark.parametrize("kind", ["slice", "all_gather", "reduce_scatter", "all_to_all", "exchange"])
@given(data=st.data())
@settings(max_examples=60)
def test_pieces_of_any_order_are_cut_and_put_together(kind: str, data: st.DataObject) -> None:
    program = data.draw(programs(kind))
    values = torch.arange(torch.Size(program.shape).numel(), dtype=torch.float64).reshape(program.shape)
    check(program, values if program.source.partial else payload(program.shape).double())


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("source", ["Root(2)", "Thirds", "P(avg)"])
def test_reductions_do_before_and_after_what_placements_declare(source: str, mesh: Mesh) -> None:
    x = torch.rand(7, 3, dtype=torch.float64) + 0.5
    op = "avg" if source == "P(avg)" else f'"{source}"'
    for axes in axis_tuples(mesh):
        if len(axes) > 1 and not parse_placement(source).splits:
            continue
        pending = placed([(axis, source) for axis in axes])
        on = f"on [{', '.join(axes)}]"
        check(Program(mesh, "all_reduce", f"{on} op {op}", pending, Sharding(), (7, 3)), x)
        for shard in ("S(0)", "Backwards(1)"):
            target, dim = placed([(axis, shard) for axis in axes]), parse_placement(shard).dim
            scatter = Program(mesh, "reduce_scatter", f"{on} dim {dim} op {op}", pending, target, (7, 3))
            if source == "Thirds":
                with pytest.raises(
                    ShardingError, match="which declare their own step; expected that step: use convert"
                ):
                    scatter.parse()
            else:
                check(scatter, x)


def test_what_axes_hold_one_after_the_other_is_not_reduced_at_once() -> None:
    source = parse_sharding("a: Thirds, b: Thirds")
    program = Program(MESHES[2], "all_reduce", 'on [a, b] op "Thirds"', source, Sharding(), (4,))
    with pytest.raises(SpmdirError, match="expected one axis: use one collective for each axis"):
        lower_to_fx(program.parse())


def test_an_edge_runs_its_python_on_every_rank() -> None:
    x = torch.rand(7, 3, dtype=torch.float64)
    ends = [("First", "R"), ("R", "First"), ("Thirds", "P(sum)"), ("R", "Thirds")]
    ends += [("Thirds", shard.format(dim)) for shard in SHARDS for dim in range(2)]
    for mesh, axis, (source, target) in itertools.product(MESHES, "ab", ends):
        if axis in mesh.sizes:
            check(Program(mesh, "convert", "", placed([(axis, source)]), placed([(axis, target)]), (7, 3)), x)


def test_an_edge_to_shards_cuts_what_outer_axes_leave() -> None:
    source = parse_sharding("b: Dealt(0, 1), a: Thirds")
    for target in ("b: Dealt(0, 1), a: Backwards(0)", "b: Dealt(0, 1), a: Dealt(0, 2)", "b: Dealt(0, 1), a: Steep(1)"):
        program = Program(Mesh({"a": 3, "b": 2}), "convert", "", source, parse_sharding(target), (11, 5))
        check(program, torch.rand(11, 5, dtype=torch.float64))


def test_what_is_only_moved_by_an_edge_keeps_its_bits() -> None:
    mesh, x = Mesh({"a": 3}), payload((5, 4))
    held = distribute(x, parse_sharding("a: First"), mesh, torch.zeros_like)
    for piece in run(Program(mesh, "convert", "", parse_sharding("a: First"), Sharding(), (5, 4), "f32"), held):
        assert torch.equal(bits(piece), bits(x))


def test_python_that_writes_into_its_operand_leaves_it_to_its_other_uses() -> None:
    text = """
    spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: Thirds>})
        -> (tensor<4xf64> {spmd.sharding = #spmd.sharding<@mesh>}, \
tensor<4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: Thirds>}) {
      %y = spmd.all_reduce %x on [a] op "Thirds" : tensor<4xf64> <>
      return %y, %x : tensor<4xf64>, tensor<4xf64>
    }"""
    x = torch.rand(4, dtype=torch.float64)
    for found in simulate(parse(text), [x]):
        torch.testing.assert_close(found, x)


def test_one_device_ignores_what_placements_declare() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    for kind, clauses, source, target in (
        ("convert", "", "a: Thirds", "a: Backwards(0)"),
        ("all_gather", "on [a] dim 1", "a: Backwards(1)", ""),
        ("all_reduce", 'on [a] op "Root(2)"', "a: Root(2)", ""),
    ):
        program = Program(Mesh({"a": 2}), kind, clauses, parse_sharding(source), parse_sharding(target), (5, 3))
        assert torch.equal(run_single(program.parse(), [x])[0], x)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, Ranges]:
    """A length and some of its positions, as ranges in any order."""
    size = draw(st.integers(0, 40))
    edges = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=20))})
    pairs = draw(st.permutations(list(itertools.pairwise(edges))))
    return size, tuple(pairs[: draw(st.integers(0, len(pairs)))])


REGULAR = [
    (24, tuple((start + at, start + at + 2) for at in (0, 2) for start in range(0, 24, 4))),
    (24, tuple((start, start + 3) for start in range(1, 20, 5))),
    (24, tuple((start, start + 1) for start in range(1, 20, 2))),
    (24, tuple((start, start + 1) for start in reversed(range(24)))),
    (24, tuple((start + at, start + at + 1) for start in range(0, 24, 4) for at in (3, 1))),
    (27, tuple((a + b + c, a + b + c + 1) for a in range(3) for b in (0, 9, 18) for c in (0, 3, 6))),
]


@given(case=st.one_of(partitions(), st.sampled_from(REGULAR)))
@settings(max_examples=200)
def test_ranges_are_taken_in_their_order_from_any_dimension(case: tuple[int, Ranges]) -> None:
    size, ranges = case
    if ranges and ranges != tuple(pair for pair in ranges if pair[0] < pair[1]):
        return

    def call(op: Any, *arguments: Any) -> Any:
        return op(*(a.tensor() if isinstance(a, Positions) else a for a in arguments))

    wanted = torch.tensor([at for start, end in ranges for at in range(start, end)], dtype=torch.int64)
    for dim in range(2):
        x: Any = torch.arange(size * 3).reshape((size, 3) if dim == 0 else (3, size))
        found: Any = take(call, x, dim, ranges, size)
        assert torch.equal(found, x.index_select(dim, wanted))
        assert length(ranges) == len(wanted)


def test_regular_ranges_are_views_and_one_copy() -> None:
    program = Program(
        Mesh({"a": 4}), "all_gather", "on [a] dim 0", parse_sharding("a: Dealt(0, 2)"), Sharding(), (64, 3)
    )
    called = [str(n.target) for n in lower_to_fx(program.parse()).graph.nodes if n.op == "call_function"]
    assert called[-4:] == [
        "aten.unflatten.int",
        "aten.movedim.intlist",
        "aten.flatten.using_ints",
        "aten.contiguous.default",
    ]
    sliced = Program(program.mesh, "slice", "on [a] dim 0", Sharding(), program.source, (64, 3))
    called = [str(n.target) for n in lower_to_fx(sliced.parse()).graph.nodes if n.op == "call_function"]
    assert "aten.index_select.default" not in called and len(called) == 5


@pytest.mark.parametrize(
    "text", ["a: Dealt(0, 1), b: Backwards(0)", "b: Steep(1), a: Dealt(0, 2)", "a: First", "b: Root(1)"]
)
def test_a_rank_alone_finds_what_it_holds(text: str) -> None:
    mesh, sharding, x = Mesh({"a": 2, "b": 3}), parse_sharding(text), torch.rand(11, 5)
    pieces = [local_tensor(x, sharding, mesh, rank) for rank in range(mesh.world_size)]
    torch.testing.assert_close(collect(pieces, sharding, mesh, x.shape), x)
    for piece, wanted in zip(pieces, distribute(x, sharding, mesh, torch.zeros_like), strict=True):
        assert torch.equal(piece, wanted)


@attrs.frozen
class Faulty(Placement):
    """Edges that go wrong, each in its way."""

    text: ClassVar[str] = "Faulty({way})"
    way: str

    def edges(self) -> Iterable[Edge]:
        yield Edge(getattr(self, self.way), target="R")

    def values(self, x: Any, group: Any) -> Any:
        return x if x.sum() > 0 else -x

    def shapes(self, x: Any, group: Any) -> Any:
        return x[x > 0]

    def fails(self, x: Any, group: Any) -> Any:
        return x.undefined()

    def shorter(self, x: Any, group: Any) -> Any:
        return x[1:]

    def wider(self, x: Any, group: Any) -> Any:
        return x.double()

    def nothing(self, x: Any, group: Any) -> Any:
        return None

    def splits(self, x: Any, group: Any) -> Any:
        return group.split(x)

    def distribute(self, tensor: Any, count: int, noise: Any) -> list[Any]:
        return [tensor.undefined()]


@pytest.mark.parametrize(
    ("way", "message", "line"),
    [
        ("values", "depends on the values of a tensor, but is traced once for all values", "return x if x.sum() > 0"),
        ("shapes", "depends on the values of a tensor, but is traced once for all values", "return x[x > 0]"),
        ("fails", "fails on a tensor of shape [4] and torch.float32: AttributeError: ", "return x.undefined()"),
        ("shorter", "returns a tensor of shape [3] and torch.float32; expected [4] and torch.float32", "class Faulty"),
        ("wider", "returns a tensor of shape [4] and torch.float64; expected [4] and torch.float32", "class Faulty"),
        ("nothing", "returns NoneType; expected a tensor", "class Faulty"),
        ("splits", "but the target shards no dimension; expected a target such as S(0)", "return group.split(x)"),
    ],
)
def test_an_edge_that_goes_wrong_is_told_with_its_line(way: str, message: str, line: str) -> None:
    source = parse_sharding(f"a: Faulty({way})")
    program = Program(Mesh({"a": 2}), "convert", "", source, Sharding(), (4,), "f32")
    with pytest.raises(SpmdirError, match=re.escape(message)) as found:
        lower_to_fx(program.parse())
    assert found.value.message.startswith(f"'spmd.convert': the edge from Faulty({way}) to R ")
    place = found.value.location
    assert place is not None and place.file == __file__
    with open(__file__) as file:
        lines = file.read().splitlines()
    assert line in "\n".join(lines[place.line - 1 : place.line + 1])


def test_a_declaration_that_fails_on_an_input_names_the_input_and_its_line() -> None:
    program = Program(Mesh({"a": 2}), "convert", "", parse_sharding("a: Faulty(fails)"), Sharding(), (4,), "f32")
    with pytest.raises(SpmdirError, match=r"'x': `distribute` of Faulty\(fails\) fails: AttributeError") as found:
        simulate(program.parse(), [torch.ones(4)])
    assert found.value.location is not None and found.value.location.file == __file__


def test_values_that_cannot_be_held_so_are_rejected_as_the_input() -> None:
    program = Program(
        Mesh({"a": 2}), "all_reduce", 'on [a] op "Norm(2)"', parse_sharding("a: Norm(2)"), Sharding(), (4,)
    )
    with pytest.raises(UnsupportedError, match=r"'x': .*negative"):
        simulate(program.parse(), [-torch.ones(4, dtype=torch.float64)])


@attrs.frozen
class OnBoth(ShardPlacement):
    """Both of two ranks hold the middle."""

    text: ClassVar[str] = "OnBoth({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return ((0, size),) if count == 1 else ((index, size - 1 + index),)


def test_pieces_are_not_gathered_where_ranks_hold_shapes_of_their_own() -> None:
    source, target = parse_sharding("b: S(0), a: First"), parse_sharding("a: First")
    program = Program(MESHES[2], "all_gather", "on [b] dim 0", source, target, (4, 2))
    with pytest.raises(
        ShardingError,
        match="where First on 'a' defines the local tensors; expected 'a' without this placement: reshard 'a' first",
    ):
        program.parse()


@attrs.frozen
class Backward(ShardPlacement):
    """The range of the second of two ranks ends before it starts."""

    text: ClassVar[str] = "Backward({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return ((0, size),) if index == 0 else ((size, size - 1),)


@pytest.mark.parametrize("text", ["OnBoth(0)", "Backward(0)"])
def test_ranges_that_are_no_partition_are_rejected(text: str) -> None:
    program = Program(Mesh({"a": 2}), "slice", "on [a] dim 0", Sharding(), parse_sharding(f"a: {text}"), (4,))
    with pytest.raises(ShardingError, match=re.escape(f"{text} over 2 ranks is not a partition of 4 positions")):
        lower_to_fx(program.parse())


def test_a_gather_of_dealt_shards_may_be_async() -> None:
    text = """
    spmd.mesh @mesh <a = 3>
    func.func @main(%x: tensor<11x2xf64> {spmd.sharding = #spmd.sharding<@mesh, a: Dealt(0, 2)>}) -> tensor<11x2xf64> {
      %0 = spmd.all_gather_start %x on [a] dim 0 : !spmd.pending<tensor<11x2xf64>> <>
      %1 = aten.neg(%x) : tensor<11x2xf64> <a: Dealt(0, 2)>
      %2 = spmd.wait %0 : tensor<11x2xf64> <>
      %3 = spmd.slice %2 on [a] dim 0 : tensor<11x2xf64> <a: Dealt(0, 2)>
      %4 = aten.add.Tensor(%1, %3) : tensor<11x2xf64> <a: Dealt(0, 2)>
      return %4 : tensor<11x2xf64>
    }"""
    assert not simulate(parse(text), [torch.randn(11, 2, dtype=torch.float64)])[0].any()


@pytest.mark.parametrize(
    ("size", "kind", "clauses", "source", "target"),
    [
        (1, "convert", "", "a: Thirds", "a: Backwards(0)"),
        (2, "slice", "on [a] dim 0", "", "a: Steep(0)"),
        (2, "slice", "on [a] dim 0", "", "a: Scattered(0)"),
    ],
)
def test_constants_and_new_tensors_are_where_the_operand_is(
    size: int, kind: str, clauses: str, source: str, target: str
) -> None:
    program = Program(Mesh({"a": size}), kind, clauses, parse_sharding(source), parse_sharding(target), (40, 2))
    (result,) = lower_to_fx(program.parse()).to("meta")(torch.empty(40, 2, dtype=torch.float64, device="meta"))
    assert result.device.type == "meta"


@attrs.frozen
class Scattered(ShardPlacement):
    """Positions dealt to the ranks by a rule without a pattern."""

    text: ClassVar[str] = "Scattered({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return joined((at, at + 1) for at in range(size) if at * at % 11 % count == index)


def test_positions_without_a_pattern_are_a_constant() -> None:
    mesh, target = Mesh({"a": 2}), parse_sharding("a: Scattered(0)")
    check(Program(mesh, "slice", "on [a] dim 0", Sharding(), target, (40, 2)), torch.rand(40, 2, dtype=torch.float64))
    program = Program(mesh, "all_gather", "on [a] dim 0", target, Sharding(), (40, 2))
    check(program, torch.rand(40, 2, dtype=torch.float64))
    assert [tuple(b.shape) for _, b in lower_to_fx(program.parse()).named_buffers()] == [(40,)]


def test_placements_that_say_what_ranks_hold_are_left_from_the_innermost_axis_on() -> None:
    text = """
    spmd.mesh @mesh <a = 2, b = 3>
    func.func @main(%x: tensor<7xf64> {spmd.sharding = #spmd.sharding<@mesh, a: First, b: First>}) -> tensor<7xf64> {
      %0 = spmd.reshard %x : tensor<7xf64> <b: S(0)>
      return %0 : tensor<7xf64>
    }"""
    x = torch.randn(7, dtype=torch.float64)
    assert torch.equal(simulate(parse(text), [x])[0], x)


def test_what_does_not_commute_is_not_held_together() -> None:
    text = """
    spmd.mesh @mesh <a = 2, b = 3>
    func.func @main(%x: tensor<7xf64> {spmd.sharding = #spmd.sharding<@mesh, a: First, b: P(sum)>}) -> tensor<7xf64> {
      return %x : tensor<7xf64>
    }"""
    with pytest.raises(ShardingError, match="do not commute"):
        parse(text)
