"""The ring attention of the page: right for every placement that shards, balanced, small in memory, and priced."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import fx

import spmdir
from spmdir.core.placement.sharding import parse_sharding
from spmdir.simulator.distribution import local_tensor
from tests.placements.ring_programs import (
    FORWARD,
    expected,
    inputs,
    pipeline,
    plugin,
    program,
    ring_pipeline,
    ring_program,
    worst,
)

MESH = spmdir.Mesh({"cp": 4})


@pytest.fixture
def path() -> str:
    return plugin()


@pytest.mark.parametrize(
    ("placement", "length", "is_causal"),
    [
        ("S(2)", 14, True),
        ("S(2)", 5, True),
        ("S(2)", 5, False),
        ("ZigZag(2)", 16, True),
        ("ZigZag(2)", 19, True),
        ("ZigZag(2)", 16, False),
        ("Cyclic(2, 1)", 18, True),
        ("Cyclic(2, 2)", 16, True),
        ("Ragged(2, [6, 9, 0, 3])", 18, True),
    ],
)
def test_output_and_gradients_are_right_for_uneven_and_empty_shards_of_any_placement(
    path: str, placement: str, length: int, is_causal: bool
) -> None:
    tensors = inputs(length)
    module = spmdir.parse(ring_program(tensors, f"cp: {placement}", is_causal=is_causal))
    local = spmdir.run_passes(module, ring_pipeline(path))
    assert "spmd.rotate" in spmdir.print_ir(local)
    assert "all_gather" not in spmdir.print_ir(local)
    spmdir.run_passes(spmdir.parse(spmdir.print_ir(local)), spmdir.Pipeline("verify-spmd", plugins=[path]))
    found = spmdir.simulate(module, tensors, pipeline=ring_pipeline(path))
    assert worst(found, expected(tensors, is_causal)) < 1e-12


def test_halves_are_added_and_their_gradients_sent_in_full_precision(path: str) -> None:
    tensors = inputs(64, size=32, dtype=torch.bfloat16)
    module = spmdir.parse(ring_program(tensors, "cp: ZigZag(2)"))
    text = spmdir.print_ir(spmdir.run_passes(module, ring_pipeline(path)))
    sent = [line.rsplit("x", 1)[1] for line in text.splitlines() if "spmd.rotate" in line]
    assert (sent.count("bf16>"), sent.count("f32>")) == (2 * 3 + 2 * 3, 2 * 4)
    found = spmdir.simulate(module, tensors, pipeline=ring_pipeline(path))
    assert [tensor.dtype for tensor in found] == [torch.bfloat16] * 4
    assert worst(found, expected(tensors)) < 2**-7


def _pairs(graph: fx.GraphModule, length: int) -> list[int]:
    """Return the pairs of query and key of each forward kernel of a rank, a triangle counted as one."""
    found = []
    for node in graph.graph.nodes:
        if str(node.target).startswith(FORWARD + ".default"):
            rows, columns = (_extent(operand, length) for operand in node.args[:2])
            found.append(rows * (rows + 1) // 2 if node.args[4] else rows * columns)
    return found


def _extent(node: Any, length: int) -> int:
    _, _, start, *end = node.args
    return min(*end, length) - start if end else length - start


@pytest.mark.parametrize(("placement", "share"), [("ZigZag(2)", 1.0), ("S(2)", 1.75)])
def test_zigzag_gives_every_rank_equal_work_and_needs_no_masks(path: str, placement: str, share: float) -> None:
    module = spmdir.parse(program(inputs(512), f"cp: {placement}"))
    assert "spmd.positions" not in spmdir.print_ir(spmdir.run_passes(module, pipeline(path)))
    graphs = [spmdir.lower_to_fx(module, rank=rank, pipeline=pipeline(path)) for rank in range(4)]
    work = [sum(_pairs(graph, 128)) for graph in graphs]
    assert max(work) / (sum(work) / 4) == pytest.approx(share, abs=0.01)


def _most_alive(graph: fx.GraphModule, local: list[torch.Tensor]) -> int:
    """Return the most bytes of tensors of a rank that are alive at once, run op by op beside ranks that send alike."""

    class Watched(fx.Interpreter):
        most = 0

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            name = str(target)
            if name.startswith("_c10d_functional.all_gather_into_tensor"):
                made = torch.cat([args[0]] * args[1])
            elif name.startswith("_c10d_functional.reduce_scatter_tensor"):
                made = args[0].chunk(args[2])[0].clone()
            elif name.startswith("_c10d_functional.all_to_all_single"):
                made = args[0].clone()
            elif name.startswith("_c10d_functional.wait_tensor"):
                made = args[0]
            else:
                made = super().call_function(target, args, kwargs)
            held = {
                t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in _tensors([*self.env.values(), made])
            }
            self.most = max(self.most, sum(held.values()))
            return made

    watched = Watched(graph)
    watched.run(*local)
    return watched.most


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def test_no_rank_ever_has_all_keys_where_gathering_them_does(path: str) -> None:
    sharding, tensors = parse_sharding("cp: ZigZag(2)"), inputs(1024)
    module = spmdir.parse(program(tensors, "cp: ZigZag(2)").replace(" <cp: ZigZag(2)>", ""))
    local = [local_tensor(tensor, sharding, MESH, 3) for tensor in tensors]
    keys = sum(tensor.nbytes for tensor in tensors[1:3])
    held = sum(tensor.nbytes for tensor in local)
    ring, gathered = (
        _most_alive(spmdir.lower_to_fx(module, rank=3, pipeline=way), local) - held
        for way in (pipeline(path), spmdir.Pipeline())
    )
    assert ring < gathered - keys / 2


def _sent(
    path: str, heads: int, key_heads: int, ranks: int, memory: str = "auto", topology: str | None = None
) -> tuple[dict[str, int], float]:
    """Return how many collectives of each kind attention forward has, and the bytes that they send."""
    tensors = [torch.empty(1, n, 4096, 64, dtype=torch.bfloat16, device="meta") for n in (heads, key_heads, key_heads)]
    text = program([*tensors, tensors[0]], "cp: S(2)", f"cp = {ranks}")
    head, body = text.split(") -> (", 1)
    given = body.split("}", 1)[0] + "}"
    lines = body.replace(" <cp: S(2)>", "").splitlines()
    module = spmdir.parse(f"{head}) -> ({given}) {{\n{lines[1]}\n  return %0 : {given.split(' {')[0]}\n}}")
    report = spmdir.report.comm_report(spmdir.run_passes(module, pipeline(path, memory, topology)))
    return {kind: share.count for kind, share in report.by_kind.items()}, report.wire_bytes


def test_the_search_prices_rings_beside_gathered_keys_and_exchanged_heads(path: str) -> None:
    """The formulas are those of the page; `kv` and `qo` are bytes of one tensor pair each."""
    per_head = 4096 * 64 * 2
    grouped, bytes_ = _sent(path, heads=16, key_heads=2, ranks=4)
    assert grouped == {"all_gather": 2}
    assert bytes_ == 3 / 4 * 2 * 2 * per_head
    ring, bytes_ = _sent(path, heads=16, key_heads=2, ranks=4, memory="least")
    assert ring == {"rotate": 2 * 3}
    assert bytes_ == 3 / 4 * 2 * 2 * per_head
    exchanged, bytes_ = _sent(path, heads=16, key_heads=16, ranks=16, topology="flat")
    assert exchanged == {"all_to_all": 4}
    assert bytes_ == 15 / 16 * 4 * 16 * per_head / 16


@pytest.mark.parametrize("second", ["S(1)", "S(0)"], ids=["heads", "batch"])
def test_a_second_axis_shards_heads_or_batch_beside_the_ring(path: str, second: str) -> None:
    tensors = inputs(16)
    module = spmdir.parse(program(tensors, f"cp: ZigZag(2), tp: {second}", "cp = 2, tp = 2"))
    report = spmdir.report.comm_report(spmdir.run_passes(module, pipeline(path)))
    assert {axes: share.count for axes, share in report.by_axis.items()} == {("cp",): 2 + 2 + 4}
    keys = sum(tensor.nbytes for tensor in tensors[1:3])
    assert report.wire_bytes == math.prod((keys / 4, 1 + 1 + 2))
    assert worst(spmdir.simulate(module, tensors, pipeline=pipeline(path)), expected(tensors)) < 1e-12


class Attention(torch.nn.Module):
    """Causal attention as models for inference call it."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("placement", ["S(2)", "ZigZag(2)", "Cyclic(2, 2)"])
def test_exported_attention_without_gradients_goes_by_rings_too(path: str, placement: str) -> None:
    tensors = inputs(16, heads=3, key_heads=3)[:3]
    shardings = {f"input:{at}": f"cp: {placement}" for at in range(3)}
    module = spmdir.import_fx(torch.export.export(Attention(), tuple(tensors)), MESH, shardings)
    assert "aten.scaled_dot_product_attention(" in spmdir.print_ir(module)
    report = spmdir.report.comm_report(spmdir.run_passes(module, pipeline(path)))
    assert {kind: share.count for kind, share in report.by_kind.items()} == {"rotate": 2 * 3}
    (found,) = spmdir.simulate(module, tensors, pipeline=pipeline(path))
    assert worst([found], [Attention()(*tensors)]) < 1e-12
