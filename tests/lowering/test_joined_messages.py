"""A collective of several tensors gives each, to the bit, what it would give it alone, with one message for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from spmdir.core.dtype import DTYPES
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import distribute
from spmdir.simulator.simulate import simulate
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.lowering.bucket_programs import KINDS, Bucket, buckets, text
from tests.lowering.collective_programs import Program, joined
from tests.lowering.gloo_ranks import on_ranks, run_texts
from tests.lowering.reshard_programs import bits

REDUCED = (
    ("i1", "any"), ("i1", "all"), ("bf16", "avg"), ("i64", "max"), ("complex<f32>", "sum"), ("f16", "product"),
)  # fmt: skip

MESHES = (Mesh({"a": 2}), Mesh({"a": 3, "b": 2}), Mesh({"a": 2, "one": 1, "b": 2}))


def value_of(member: Program, generator: torch.Generator) -> torch.Tensor:
    """Return whole numbers, of which every element type has the sums, of the shape and type of a member."""
    return torch.randint(0, 2, member.shape, generator=generator).to(TORCH_DTYPES[DTYPES[member.dtype]])


def assert_alike(some: Iterable[Bucket]) -> None:
    """Every member of the buckets, which are of one mesh, gets what it gets alone."""
    generator, every = torch.Generator().manual_seed(0), list(some)
    members = [member for bucket in every for member in bucket.members]
    inputs = [value_of(member, generator) for member in members]
    results = simulate(parse(text(every)), inputs, interleavings=2)
    for x, together, alone in zip(inputs, results, results[len(inputs) :], strict=False):
        assert together.dtype == x.dtype, text(every)
        assert torch.equal(bits(together), bits(alone)), text(every)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_members_of_any_shape_get_what_they_get_alone(kind: str, mesh: Mesh) -> None:
    assert_alike(buckets(mesh, kind, "f64", ("sum",), 12))


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_members_of_any_element_type_are_moved(kind: str) -> None:
    assert_alike(bucket for dtype in DTYPES for bucket in buckets(MESHES[0], kind, dtype, (), 2))


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_members_of_any_element_type_are_reduced(kind: str) -> None:
    assert_alike(bucket for dtype, op in REDUCED for bucket in buckets(MESHES[2], kind, dtype, (op,), 2))


EVEN = (
    ("all_reduce", ("on [a] op sum",) * 2, "a: P(sum)", ("", "")),
    ("reduce_scatter", ("on [a] dim 0 op sum",) * 2, "a: P(sum)", ("a: S(0)", "a: S(0)")),
    ("all_gather", ("on [a] dim 0",) * 2, "a: S(0)", ("", "")),
)


@pytest.mark.parametrize(("kind", "clauses", "source", "targets"), EVEN, ids=lambda value: str(value))
def test_one_message_is_packed_by_one_kernel_and_taken_apart_by_views(kind, clauses, source, targets) -> None:
    members = [
        Program(MESHES[0], kind, on, parse_sharding(source), parse_sharding(target), (4, 6))
        for on, target in zip(clauses, targets, strict=True)
    ]
    calls = Counter(names(text([Bucket(tuple(members))]))) - Counter(names(joined(members)))
    views = {"reshape.default", "contiguous.default", "split_with_sizes.default", "getitem"}
    assert {name: count for name, count in calls.items() if name not in views} == {
        "cat.default": 1,
        "wait_tensor.default": 1,
        f"{FUNCTIONAL[kind]}.default": 1,
    }


FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_gather": "all_gather_into_tensor",
}


def names(program: str) -> list[str]:
    """Return the names of what rank 0 calls in a program."""
    return [node.target.__name__ for node in lower_to_fx(parse(program)).graph.nodes if node.op == "call_function"]


def test_what_is_gathered_along_an_inner_dimension_is_copied_once() -> None:
    ends = parse_sharding("a: S(1)"), Sharding()
    members = (Program(MESHES[0], "all_gather", "on [a] dim 1", *ends, (4, 6)),) * 2
    graph = lower_to_fx(parse(text([Bucket(members)]))).graph
    (split,) = graph.find_nodes(op="call_function", target=torch.ops.aten.split_with_sizes.default)
    parts = [next(iter(part.users)) for part in split.users]
    assert [part.args[1] for part in parts] == [[2, 4, 3]] * 2


def test_a_member_with_one_element_from_each_rank_has_no_gaps_in_memory() -> None:
    ends = parse_sharding("a: S(0)"), Sharding()
    members = (Program(MESHES[0], "all_gather", "on [a] dim 0", *ends, (2,)),) * 2
    graph = lower_to_fx(parse(text([Bucket(members)]))).graph
    (split,) = graph.find_nodes(op="call_function", target=torch.ops.aten.split_with_sizes.default)
    views = [next(iter(part.users)) for part in split.users]
    assert [next(iter(view.users)).target for view in views] == [torch.ops.aten.contiguous.default] * 2


def test_results_have_the_names_of_their_values() -> None:
    ends = parse_sharding("a: P(sum)"), Sharding()
    members = (Program(MESHES[0], "all_reduce", "on [a] op sum", *ends, (4, 6)),) * 3
    graph = lower_to_fx(parse(text([Bucket(members, is_async=True)]))).graph
    assert {"y0", "y1", "y2"} <= {node.name for node in graph.nodes}


def test_a_stream_is_a_group_of_its_own() -> None:
    ends = parse_sharding("a: P(sum)"), Sharding()
    members = (Program(MESHES[0], "all_reduce", "on [a] op sum", *ends, (4, 6)),)
    program = lower_to_fx(parse(text([Bucket(members, is_async=True, stream="gradients")])))
    groups = [node.args[-1] for node in program.graph.nodes if "all_reduce" in node.name]
    assert groups == ["mesh:a#gradients", "mesh:a"]


@pytest.mark.gloo
def test_real_ranks_send_what_several_tensors_need_in_one_message(tmp_path: Path) -> None:
    mesh = Mesh({"a": 2, "b": 2})
    some = [bucket for kind in KINDS for bucket in buckets(mesh, kind, "f64", ("sum",), 6)]
    some += [bucket for dtype in ("i16", "complex<f32>", "i1") for bucket in buckets(mesh, "all_gather", dtype, (), 3)]
    every = [member for bucket in some for member in bucket.members]
    generator = torch.Generator().manual_seed(0)
    inputs = [distribute(value_of(m, generator), m.source, mesh, lambda x: torch.randint_like(x, -9, 9)) for m in every]
    torch.save(inputs, tmp_path / "inputs")
    for (found,) in on_ranks(mesh.world_size, run_texts, tmp_path, mesh, [text(some)], tmp_path / "inputs"):
        for index, member in enumerate(every):
            assert torch.equal(bits(found[index]), bits(found[len(every) + index])), member.text
