"""Layers of experts on simulated ranks: rows are sorted, dispatched to the ranks of their experts, and combined."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import silu
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.lowering.emit import lower_to_fx

LAYER = """
spmd.mesh @mesh <{mesh}>

func.func @f(%x: tensor<{tokens}x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {x}>}},
             %router: tensor<6x4xf64> {{spmd.sharding = #spmd.sharding<@mesh>}},
             %up: tensor<4x6x10xf64> {{spmd.sharding = #spmd.sharding<@mesh, {up}>}},
             %down: tensor<4x10x6xf64>) -> tensor<{tokens}x6xf64> {{
  %scores = aten.mm(%x, %router) : tensor<{tokens}x4xf64>
  %top, %ids = aten.topk(%scores) {{k = 2}} : tensor<{tokens}x2xf64>, tensor<{tokens}x2xi64>
  %order, %counts, %arrivals = experts.route(%ids) {{experts = 4}} : tensor<{rows}xi64>, tensor<4xi64>, tensor<4xi64>
  %column = aten.unsqueeze(%x) {{dim = 1}} : tensor<{tokens}x1x6xf64>
  %pairs = aten.expand(%column) {{size = [{tokens}, 2, 6]}} : tensor<{tokens}x2x6xf64>
  %sorted = experts.sort_rows(%pairs, %order) : tensor<{rows}x6xf64>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<{rows}x6xf64>
  %hidden = experts.grouped_mm(%rows, %up, %arrivals) : tensor<{rows}x10xf64>{hidden}
  %active = aten.silu(%hidden) : tensor<{rows}x10xf64>
  %out = experts.grouped_mm(%active, %down, %arrivals) : tensor<{rows}x6xf64>
  %home = experts.regroup(%out, %counts, %arrivals) : tensor<{rows}x6xf64>
  %results = experts.unsort_rows(%home, %order, %ids) : tensor<{tokens}x2x6xf64>
  %y = aten.sum.dim_IntList(%results) {{dim = [1]}} : tensor<{tokens}x6xf64>
  return %y : tensor<{tokens}x6xf64>
}}
"""


def layer(
    mesh: str = "ep = 2", x: str = "ep: S(0)", up: str = "ep: S(0)", tokens: int = 8, hidden: str = ""
) -> ModuleOp:
    text = LAYER.format(mesh=mesh, x=x, up=up, tokens=tokens, rows=2 * tokens, hidden=f" <{hidden}>" if hidden else "")
    return spmdir.run_passes(spmdir.parse(text), "propagate{topology=flat}")


def one_device(x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    ids = (x @ router).topk(2).indices
    results = [[silu(row @ up[e]) @ down[e] for e in experts] for row, experts in zip(x, ids, strict=True)]
    return torch.stack([sum(of_token) for of_token in results]) if len(x) else x


def inputs(tokens: int, bias: float = 0.0) -> list[torch.Tensor]:
    """Return random inputs. With a bias, tokens prefer the first experts."""
    torch.manual_seed(tokens)
    x, router = torch.randn(tokens, 6).double(), torch.randn(6, 4).double()
    x[:, 0], router[0] = 1.0, router[0] + bias * torch.tensor([3.0, 2.0, 1.0, 0.0])
    return [x, router, torch.randn(4, 6, 10).double(), torch.randn(4, 10, 6).double()]


def error(module: ModuleOp, tokens: int, bias: float = 0.0) -> float:
    values = inputs(tokens, bias)
    (result,) = spmdir.simulate(module, values)
    expected = one_device(*values)
    return ((result - expected).abs().max() / expected.abs().max()).item() if tokens else 0.0


def placements(module: ModuleOp) -> set[str]:
    return {name for name in ("Home(0)", "Grouped(0)") if name in spmdir.print_ir(module)}


@pytest.mark.parametrize("tokens", [8, 7, 5, 4])
@pytest.mark.parametrize("bias", [0.0, 100.0], ids=["balanced", "two experts"])
def test_dispatched_rows_give_the_numbers_of_one_device(tokens: int, bias: float):
    module = layer("ep = 4", tokens=tokens, hidden="ep: Grouped(0)")
    assert placements(module) == {"Home(0)", "Grouped(0)"}
    assert error(module, tokens, bias) < 1e-12


@pytest.mark.parametrize("tokens", [8, 5])
def test_rows_in_flight_give_the_numbers_of_one_device(tokens: int):
    module = layer("ep = 4", tokens=tokens, hidden="ep: Grouped(0)")
    module = spmdir.run_passes(module, "expand,insert-reshard,lower-reshard,localize,split-async,reorder,verify-spmd")
    starts = re.findall(r"spmd\.exchange_(\w+)_start", spmdir.print_ir(module))
    assert starts == ["counts", "rows", "rows"]
    assert error(module, tokens) < 1e-12


LOWERED = "expand,insert-reshard,lower-reshard,fuse-collectives"
HOME_AND_GROUPED, BOTH_GROUPED = "dp: Home(0), ep: Grouped(0)", "dp: Grouped(0), ep: Grouped(0)"


def in_slots(capacity: int, hidden: str = HOME_AND_GROUPED, further_passes: str = "") -> ModuleOp:
    module = layer("dp = 2, ep = 2", x="dp: S(0), ep: S(0)", hidden=hidden)
    return spmdir.run_passes(
        module, f"{LOWERED},pad-rows{{capacity={capacity}}},verify-spmd,localize{further_passes},verify-spmd"
    )


@pytest.mark.parametrize("hidden", [HOME_AND_GROUPED, BOTH_GROUPED])
@pytest.mark.parametrize("further_passes", ["", ",split-async,reorder"])
def test_rows_in_slots_give_the_numbers_of_one_device(hidden: str, further_passes: str):
    module = in_slots(2, hidden, further_passes)
    text = spmdir.print_ir(module)
    assert text.count("spmd.exchange_slots") == 2
    assert "spmd.exchange_rows" not in text
    assert error(module, 8, bias=100.0) < 1e-12


def test_the_search_does_not_choose_slots():
    assert "Slots" not in spmdir.print_ir(layer())


def test_the_host_reads_no_counts_of_rows_in_slots():
    graph = lower_to_fx(in_slots(2), 0).graph
    called = {getattr(node.target, "__name__", "") for node in graph.nodes}
    assert "require_within_capacity.default" in called
    assert called.isdisjoint(("host_copy", "host_list"))


def test_rows_beyond_the_capacity_are_an_error_on_all_ranks():
    with pytest.raises(spmdir.SpmdirError, match="8 rows exceed the capacity of 1 rows for each expert and rank"):
        error(in_slots(1), 8, bias=100.0)


def test_slots_require_equally_many_tokens_on_each_rank():
    module = spmdir.run_passes(layer("ep = 4", tokens=7, hidden="ep: Grouped(0)"), LOWERED)
    with pytest.raises(spmdir.SpmdirError, match="pad-rows found 14 rows, which the ranks do not divide evenly"):
        spmdir.run_passes(module, "pad-rows{capacity=8}")


@pytest.mark.parametrize("tokens", [8, 7, 5])
def test_rows_of_own_tokens_give_the_numbers_of_one_device(tokens: int):
    module = layer("ep = 4", tokens=tokens, hidden="ep: Home(0)")
    assert placements(module) == {"Home(0)"}
    assert error(module, tokens) < 1e-12


@pytest.mark.parametrize(
    "hidden",
    [
        "dp: Home(0), ep: Grouped(0)",
        "ep: Grouped(0), dp: Home(0)",
        "dp: Home(0), ep: Home(0)",
        "ep: Grouped(0), dp: S(1)",
        "dp: Grouped(0), ep: Grouped(0)",
    ],
)
@pytest.mark.parametrize("tokens", [8, 5])
def test_other_axes_are_free(hidden: str, tokens: int):
    module = layer("dp = 2, ep = 2", x="dp: S(0), ep: S(0)", hidden=hidden, tokens=tokens)
    assert error(module, tokens) < 1e-12


def test_rows_are_dispatched_over_two_of_three_axes():
    hidden = "dp: Home(0), ep: Grouped(0), tp: Grouped(0)"
    module = layer("dp = 2, ep = 2, tp = 2", x="dp: S(0), ep: S(0), tp: S(0)", up="ep: S(0), tp: S(0)", hidden=hidden)
    assert error(module, 8) < 1e-12


@pytest.mark.parametrize(("width", "chosen"), [(4096, {"Home(0)", "Grouped(0)"}), (8, {"Home(0)"})])
def test_the_search_dispatches_rows_if_that_is_cheaper_than_gathering_weights(width: int, chosen: set[str]):
    text = LAYER.format(mesh="ep = 2", x="ep: S(0)", up="ep: S(0)", tokens=8, rows=16, hidden="")
    module = spmdir.parse(text.replace("10xf64", f"{width}xf64").replace("4x10x6", f"4x{width}x6"))
    assert placements(spmdir.run_passes(module, "propagate{topology=flat}")) == chosen


TWO_ROUTES = """
spmd.mesh @mesh <ep = 2>

#tokens = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%a: tensor<8x2xi64> {spmd.sharding = #tokens},
             %b: tensor<8x2xi64> {spmd.sharding = #tokens},
             %x: tensor<8x2x6xf64> {spmd.sharding = #tokens}) -> (tensor<8x2x6xf64> {spmd.sharding = #tokens}) {
  %p, %pc, %pa = experts.route(%a) {experts = 4} : tensor<16xi64>ORDER, tensor<4xi64>COUNTS, tensor<4xi64>COUNTS
  %q, %qc, %qa = experts.route(%b) {experts = 4} : tensor<16xi64>ORDER, tensor<4xi64>COUNTS, tensor<4xi64>COUNTS
  %left = experts.sort_rows(%x, %p) : tensor<16x6xf64>ROWS
  %right = experts.sort_rows(%x, %q) : tensor<16x6xf64>ROWS
  %both = aten.mul.Tensor(%left, %right) : tensor<16x6xf64>ROWS
  %y = experts.unsort_rows(%both, %p, %a) : tensor<8x2x6xf64>TOKENS
  return %y : tensor<8x2x6xf64>
}
"""


def two_routes(order: str = "", counts: str = "", rows: str = "", tokens: str = "") -> ModuleOp:
    text = TWO_ROUTES
    for name, placement in {"ORDER": order, "COUNTS": counts, "ROWS": rows, "TOKENS": tokens}.items():
        text = text.replace(name, f" <ep: {placement}>" if placement else "")
    return spmdir.parse(text)


def test_rows_of_two_routes_are_not_combined_on_ranks():
    assert not placements(spmdir.run_passes(two_routes(), "propagate{topology=flat}"))


def test_a_decided_program_that_combines_two_routes_is_an_error():
    module = two_routes("LocalOrder(0)", "LocalCounts", "Home(0)", "S(0)")
    with pytest.raises(spmdir.SpmdirError, match=r"'aten\.mul\.Tensor' combines rows of 2 routes"):
        spmdir.run_passes(module, "verify-spmd")


def test_rows_in_two_placements_are_an_error_of_propagate():
    text = LAYER.format(mesh="ep = 2", x="ep: S(0)", up="ep: S(0)", tokens=8, rows=16, hidden=" <ep: Grouped(0)>")
    text = text.replace(
        "aten.silu(%hidden) : tensor<16x10xf64>", "aten.silu(%hidden) : tensor<16x10xf64> <ep: Home(0)>"
    )
    with pytest.raises(spmdir.SpmdirError, match=r"'aten.silu' needs %hidden as <ep: Home\(0\)>, but") as caught:
        spmdir.run_passes(spmdir.parse(text), "propagate")
    assert caught.value.location is not None


RELU = """
spmd.mesh @mesh <ep = 2>

func.func @f(%x: tensor<8x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {x}>}})
    -> (tensor<8x6xf64> {{spmd.sharding = #spmd.sharding<@mesh, {result}>}}) {{
  %y = aten.relu(%x) : tensor<8x6xf64>{y}
  return %y : tensor<8x6xf64>
}}
"""

WRONG = {
    "argument": (
        {"x": "ep: Home(0)", "result": "", "y": ""},
        "argument 0 has the placement Home.0., whose rows .* router",
    ),
    "result": ({"x": "", "result": "ep: Home(0)", "y": ""}, "result 0 has the placement Home.0., whose rows"),
    "op": (
        {"x": "ep: S(0)", "result": "", "y": " <ep: Grouped(0)>"},
        "'aten.relu' gives Grouped.0., but its operands are not rows in the order of an experts.route; expected",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_routed_placement_of_rows_without_a_route_is_an_error_before_the_search(name: str):
    texts, message = WRONG[name]
    with pytest.raises(spmdir.SpmdirError, match=message) as caught:
        spmdir.run_passes(spmdir.parse(RELU.format(**texts)), "propagate")
    assert caught.value.location is not None
