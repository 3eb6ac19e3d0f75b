"""Views whose dimensions sub-axes divide: random programs, and what the search makes of some."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.analysis.sub_axes import wanted_splits
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.rule_set import default

PIPELINE = "propagate,verify-spmd{before-reshard=true},insert-reshard,lower-reshard,fuse-collectives,verify-spmd"
MESHES = (Mesh({"tp": 4}), Mesh({"tp": 8}), Mesh({"dp": 2, "tp": 4}), Mesh({"tp": 6}))
SPLITS = {
    2: (("{}",),),
    4: (("{}",), ("{}(1)2", "{}(2)2")),
    6: (("{}",), ("{}(1)2", "{}(2)3"), ("{}(1)3", "{}(3)2")),
    8: (("{}",), ("{}(1)2", "{}(2)4"), ("{}(1)4", "{}(4)2"), ("{}(1)2", "{}(2)2", "{}(4)2")),
}
"""Size of an axis → the ways to write it as sub-axes."""


@attrs.frozen
class Chain:
    """A value that is viewed again and again, with its shardings.

    Attributes:
        shapes: of the argument and of every view.
        placed: what is asked of the argument and of every view; None where nothing is.
    """

    mesh: Mesh
    shapes: tuple[tuple[int, ...], ...]
    placed: tuple[Sharding | None, ...]

    @property
    def text(self) -> str:
        types = [f"tensor<{'x'.join(map(str, shape))}xf64>" for shape in self.shapes]
        given = self.placed[0]
        comma = (
            "" if given is None else f" {{spmd.sharding = #spmd.sharding<@mesh{', ' * bool(given.entries)}{given}>}}"
        )
        lines, last = [], "%x"
        for index, (shape, type_, sharding) in enumerate(zip(self.shapes, types, self.placed, strict=True)):
            if index:
                lines.append(f"%v{index} = aten.view({last}) {{size = {list(shape)}}} : {type_}")
                lines.append(f"%s{index} = aten._softmax(%v{index}) {{dim = -1, half_to_float = false}} : {type_}")
                last = f"%s{index}"
            if index and sharding is not None:
                lines.append(f"%c{index} = spmd.constraint {last} : {type_} <{sharding}>")
                last = f"%c{index}"
        body = "\n  ".join([*lines, f"return {last} : {types[-1]}"])
        return (
            f"spmd.mesh @mesh {self.mesh}\n\nfunc.func @main(%x: {types[0]}{comma}) -> {types[-1]} {{\n  {body}\n}}\n"
        )

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        for shape in self.shapes[1:]:
            x = torch.softmax(x.reshape(shape), -1)
        return x


def divisors(size: int) -> st.SearchStrategy[int]:
    return st.sampled_from([d for d in range(1, size + 1) if size % d == 0])


@st.composite
def shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    first = draw(divisors(size))
    second = draw(divisors(size // first))
    found = draw(st.permutations([first, second, size // first // second]))
    return tuple(found) if draw(st.booleans()) else (found[0], found[1] * found[2])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    mesh = draw(st.sampled_from(MESHES))
    axes = [p.format(axis) for axis, size in mesh.axes for p in draw(st.sampled_from(SPLITS[size]))]
    size = draw(st.sampled_from([16, 24, 36, 48]))
    found = tuple(draw(shapes(size)) for _ in range(draw(st.integers(2, 4))))

    def sharding(rank: int) -> Sharding:
        order = draw(st.permutations(axes))
        placed = [draw(st.sampled_from([R, *map(Shard, range(rank))])) for _ in order]
        return Sharding(zip(order, placed, strict=True)).merged(mesh)

    placed = tuple(sharding(len(shape)) if draw(st.booleans()) else None for shape in found)
    return Chain(mesh, found, placed)


@settings(max_examples=15)
@given(chains())
def test_views_by_sub_axes_keep_the_global_value(chain: Chain) -> None:
    module = spmdir.run_passes(spmdir.parse(chain.text), PIPELINE)
    text = spmdir.print_ir(module)
    assert spmdir.print_ir(spmdir.parse(text)) == text
    x = torch.randn(chain.shapes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (y,) = spmdir.simulate(module, [x])
    torch.testing.assert_close(y, chain.expected(x))
    local = spmdir.print_ir(spmdir.run_passes(module, "localize"))
    assert spmdir.print_ir(spmdir.parse(local)) == local


def pointwise(chain: Chain) -> str:
    """Return the program with a relu in place of each softmax."""
    return chain.text.replace("aten._softmax", "aten.relu").replace(" {dim = -1, half_to_float = false}", "")


@pytest.mark.parametrize(
    ("whole", "parts"),
    [((8,), (2, 4)), ((16,), (2, 2, 4)), ((3, 8), (3, 2, 4)), ((8, 3), (2, 4, 3)), ((8,), (2, 2, 2))],
)
@pytest.mark.parametrize("mesh", [Mesh({"tp": 4}), Mesh({"dp": 3, "tp": 4}), Mesh({"tp": 8})], ids=str)
def test_a_view_that_takes_a_sharded_dimension_apart_needs_no_communication(
    mesh: Mesh, whole: tuple[int, ...], parts: tuple[int, ...]
) -> None:
    dim = whole.index(max(whole))
    held = Sharding([("tp", Shard(dim))])
    chain = Chain(mesh, (whole, parts, whole), (held, None, held))
    module = spmdir.run_passes(spmdir.parse(pointwise(chain)), PIPELINE)
    assert spmdir.report.comm_report(module).count == 0, spmdir.print_ir(module)
    x = torch.arange(math.prod(whole), dtype=torch.float64).reshape(whole)
    assert torch.equal(spmdir.simulate(module, [x])[0], x)


def test_communication_on_a_sub_axis_counts_under_its_axis() -> None:
    chain = Chain(Mesh({"tp": 4}), ((8,), (2, 4)), (Sharding([("tp", Shard(0))]), Sharding([("tp(1)2", Shard(0))])))
    report = spmdir.report.comm_report(spmdir.run_passes(spmdir.parse(pointwise(chain)), PIPELINE))
    assert report.count == 1
    assert list(report.by_axis) == [("tp",)]


@pytest.mark.parametrize(
    ("mesh", "most"), [({"a": 64}, 4), ({"a": 4, "b": 4}, 4), ({"a": 4, "b": 4, "c": 4, "d": 4}, 5)]
)
def test_axes_are_split_into_few_parts_for_plans_take_longer_by_each(mesh: dict[str, int], most: int) -> None:
    view = Call("aten.view", (TensorMeta((2,) * 6, "f32"),), (("size", (64,)),), (TensorMeta((64,), "f32"),))
    rule = default().instantiate(view)
    assert rule is not None
    weights = {(rule, axis): 1.0 for axis in mesh}
    assert len(wanted_splits(weights, Mesh(mesh)).axes) == most
