"""Gradients through reshards, as DTensor defines them; docs/reference-systems.md numbers its capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding, parse_sharding
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import collect, distribute, random_like
from tests.importer.imported_programs import ops
from tests.lowering.gloo_ranks import on_ranks

ONE, FOUR, DEEP = Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 4})
PASSES = "propagate,insert-reshard,lower-reshard,fuse-collectives,verify-spmd"
WHOLE_WAY = spmdir.Pipeline(PASSES, topology="flat")
"""Latencies would make replicating tensors as small as these the cheapest."""


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def partition(function: Any, shardings: dict[str, object], *args: Tensor, mesh: Mesh) -> ModuleOp:
    """Return the partitioned program of all ranks, once it has been seen to compute what `function` does."""
    module = spmdir.import_fx(make_fx(function)(*args), mesh, shardings)
    expected = function(*args)
    for one, other in zip(spmdir.simulate(module, list(args)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    return spmdir.run_passes(module, WHOLE_WAY)


def sent(module: ModuleOp) -> list[str]:
    """Return the collectives; a slice is local."""
    found = [op.name.removeprefix("spmd.") for op in ops(module) if op.name.startswith("spmd.")]
    return [name for name in found if name != "slice"]


def gradients(source: str, target: str, order: int = 1) -> Any:
    """Return (x, w) → a value that goes from one sharding to another, and the gradients of a function of it."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = spmdir.constrain(spmdir.constrain(x @ w, source), target)
        found: Sequence[Tensor] = (y.sin().sum(),)
        for _ in range(order):
            found = torch.autograd.grad(torch.stack([g.square().sum() for g in found]).sum(), (x, w), create_graph=True)
        return (y, *found)

    return function


BACK = [
    ("", "b: P(sum)"),
    ("b: P(sum)", ""),
    ("b: P(sum)", "b: S(0)"),
    ("b: S(1)", "b: P(sum)"),
    ("b: P(sum)", "a: S(0)"),
    ("a: P(sum), b: P(sum)", "b: S(0), a: S(0)"),
    ("a: S(0), b: P(sum)", "a: P(avg), b: S(1)"),
    ("b: P(max)", "a: P(sum)"),
    ("b: S(0), a: S(0)", "a: S(0), b: S(0)"),
    ("a: S(0), b(1)2: P(sum), b(2)2: S(1)", "b: S(1)"),
    ("a: S(0), b: Cyclic(0, 1)", "b: Masked"),
    ("b: Masked", "a: P(sum), b: Strided(1, 2)"),
]


@pytest.fixture
def pretended_ranks():
    """Yield a process group of four ranks of which only one is there, and its mesh."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=FOUR.axis_names)
    dist.destroy_process_group()


def test_gradients_are_placed_where_dtensor_places_them(pretended_ranks) -> None:
    """Item 15: at the source, with what is partial there replicated."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    r, s0, s1, total, largest = Replicate(), Shard(0), Shard(1), Partial(), Partial("max")
    whole = values(4, 4)
    for source in ((total, r), (s0, total), (total, total), (s0, s0), (r, s1), (largest, s1), (Partial("avg"), r)):
        for target in ((r, r), (s0, s1), (s0, s0), (r, s1)):
            held, wanted = (str(as_sharding(side, FOUR)) for side in (source, target))
            x: Any = DTensor.from_local(whole, pretended_ranks, source, run_check=False).requires_grad_()
            theirs: Any = torch.autograd.grad(x.redistribute(pretended_ranks, target).sin().sum(), x)[0]
            module = spmdir.import_fx(make_fx(gradients(held, wanted))(whole, torch.eye(4).double()), FOUR)
            ours = [op.shardings[0] for op in ops(module) if op.name == "spmd.constraint"][-1]
            assert ours == as_sharding(theirs.placements, FOUR), (held, wanted)


@pytest.mark.parametrize(("source", "target"), BACK)
def test_gradients_through_a_reshard_are_those_of_one_device(source: str, target: str) -> None:
    """Item 15: into partial sums, out of them, and between nesting orders, with shards that are uneven."""
    held: dict[str, object] = {"x": "a: S(0), b: S(1)", "w": "b: S(0)"}
    partition(gradients(source, target), held, values(5, 6), values(6, 7), mesh=DEEP)
    partition(gradients(source, target), held, values(8, 8), values(8, 8), mesh=DEEP)


@pytest.mark.parametrize(("source", "target"), [("b: P(sum)", "b: S(0)"), ("a: S(0), b: P(sum)", "b: S(1)")])
def test_second_gradients_through_a_reshard_are_those_of_one_device(source: str, target: str) -> None:
    """2.13: double backward."""
    partition(gradients(source, target, order=2), {"x": "b: S(1)"}, values(5, 6), values(6, 4), mesh=FOUR)


def test_the_reverse_of_a_gather_is_a_scattered_sum() -> None:
    """Item 15: backward to the previous sharding; a gradient that is partial there is reduced, no more."""

    def function(x, w):
        w = w.detach().requires_grad_()
        whole = spmdir.constrain(spmdir.constrain(w, "a: S(0)"), "")
        return torch.autograd.grad((x @ whole).sin().sum(), w)

    # So many rows that gathering x costs more than the sum.
    module = partition(function, {"x": "a: S(0)", "w": "a: S(0)"}, values(80, 6), values(6, 6), mesh=ONE)
    assert sent(module) == ["all_gather", "reduce_scatter"]


def test_the_same_placements_send_nothing() -> None:
    """Items 12 and 15."""

    def function(x):
        x = x.detach().requires_grad_()
        y = spmdir.constrain(spmdir.constrain(x, "a: S(0)").sin(), "a: S(0)")
        return torch.autograd.grad(y.cos().sum(), x)

    assert not sent(partition(function, {"x": "a: S(0)"}, values(8, 6), mesh=ONE))


@pytest.mark.parametrize("target", ["", "a: S(0)", "b: S(1)", "a: S(1), b: P(sum)"])
def test_a_looked_up_vocabulary_that_is_sharded_may_be_used_twice_and_moved_anywhere(target: str) -> None:
    """Item 8: `MaskPartial` holds its mask for one use, and no path leads to it; here what is looked up is a sum."""

    def function(ids, table):
        table = table.detach().requires_grad_()
        rows = torch.nn.functional.embedding(ids, table)
        here = spmdir.constrain(rows, target)
        loss = (here.sin() * rows.cos()).sum() + here.square().sum()
        return rows.clone(), *torch.autograd.grad(loss, table)

    ids = torch.randint(0, 11, (5, 3), generator=torch.Generator().manual_seed(0))
    partition(function, {"ids": "", "table": "b: S(0)"}, ids, values(11, 4), mesh=FOUR)


def run_module(rank: int, mesh: Mesh, held: Sequence[Sharding], inputs: Sequence[Tensor], *texts: str) -> list[Any]:
    """Return what a rank has of every result of every program."""
    names = tuple(mesh.axis_names)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=names)
    noise = random_like(torch.Generator().manual_seed(0))
    shards = [distribute(x, s, mesh, noise)[rank] for x, s in zip(inputs, held, strict=True)]
    return [lower_to_fx(parse(text), device_mesh=device_mesh)(*shards) for text in texts]


@pytest.mark.gloo
def test_real_ranks_have_the_gradients_of_one_device(tmp_path: Path) -> None:
    """Item 15."""
    held = [parse_sharding("a: S(0), b: S(1)"), parse_sharding("b: S(0)")]
    inputs = [values(5, 6), values(6, 7)]
    shardings = dict(zip(("x", "w"), held, strict=True))
    functions = [gradients(source, target) for source, target in BACK[2:7]]
    modules = [spmdir.import_fx(make_fx(f)(*inputs), FOUR, shardings, out_shardings=["a: S(0)"] * 3) for f in functions]
    texts = [spmdir.print_ir(spmdir.run_passes(module, WHOLE_WAY)) for module in modules]
    outputs = on_ranks(4, run_module, tmp_path, FOUR, held, inputs, *texts)
    for index, function in enumerate(functions):
        for which, expected in enumerate(function(*inputs)):
            shards = [results[index][which] for results in outputs]
            torch.testing.assert_close(collect(shards, parse_sharding("a: S(0)"), FOUR, expected.shape), expected)
