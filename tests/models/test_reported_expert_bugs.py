"""Bugs of other systems in mixtures of experts: spmdir rejects each program, or computes the numbers of one device."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir
from tests.models.test_expert_training import BY_EXPERT, build, exact_loss_of, token_ids, training
from tests.placements.test_routed_rows import LAYER

GROUPED, HOME = "ep: Grouped(0)", "ep: Home(0)"

PRODUCTS = """
spmd.mesh @mesh <ep = {ranks}>

#tokens = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%ids: tensor<9x2xi64> {{spmd.sharding = #tokens}}, %x: tensor<9x2x6xf32> {{spmd.sharding = #tokens}},
             %dy: tensor<9x2x5xf32> {{spmd.sharding = #tokens}}, %w: tensor<4x6x5xf32>)
    -> (tensor<9x2x5xf32>, tensor<4x6x5xf32>) {{
  %order, %counts, %arrivals = experts.route(%ids) {{experts = 4}} : tensor<18xi64>, tensor<4xi64>, tensor<4xi64>
  %sorted = experts.sort_rows(%x, %order) : tensor<18x6xf32>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<18x6xf32>
  %y = experts.grouped_mm(%rows, %w, %arrivals) : tensor<18x5xf32> <{rows}>
  %home = experts.regroup(%y, %counts, %arrivals) : tensor<18x5xf32>
  %out = experts.unsort_rows(%home, %order, %ids) : tensor<9x2x5xf32>
  %dsorted = experts.sort_rows(%dy, %order) : tensor<18x5xf32>
  %drows = experts.regroup(%dsorted, %counts, %arrivals) : tensor<18x5xf32>
  %dw = experts.grouped_outer(%rows, %drows, %arrivals) {{experts = 4}} : tensor<4x6x5xf32>
  return %out, %dw : tensor<9x2x5xf32>, tensor<4x6x5xf32>
}}
"""
"""The products of the experts of nine tokens, and the gradient of the weights."""


def products(rows: str, ids: Tensor, ranks: int = 2) -> list[Tensor]:
    """Return the results of PRODUCTS on simulated ranks."""
    module = spmdir.run_passes(spmdir.parse(PRODUCTS.format(ranks=ranks, rows=rows)), "propagate{topology=flat}")
    assert ("Grouped(0)" in spmdir.print_ir(module)) == ("Grouped" in rows)
    generator = torch.Generator().manual_seed(0)
    shapes = (9, 2, 6), (9, 2, 5), (4, 6, 5)
    x, dy, w = (torch.randn(shape, generator=generator) for shape in shapes)
    return list(spmdir.simulate(module, [ids, x, dy, w]))


@pytest.mark.parametrize("rows", [GROUPED, HOME])
@pytest.mark.parametrize("wrong", [4, 5, -1])  # two experts too many would divide evenly over two ranks
def test_an_expert_that_does_not_exist_is_an_error(rows: str, wrong: int) -> None:
    ids = torch.arange(18).reshape(9, 2) % 4
    ids[::2, 1] = wrong
    with pytest.raises(spmdir.SpmdirError, match=rf"the router chooses the experts .*{wrong}.*; expected 0 to 3"):
        products(rows, ids)


def test_sums_over_rows_have_the_order_of_one_device() -> None:
    ids = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(n))[:2] for n in range(9)])
    for dispatched, expected in zip(products(GROUPED, ids), products(HOME, ids, ranks=1), strict=True):
        assert torch.equal(dispatched, expected)


def test_a_combine_that_returns_fewer_rows_is_an_error() -> None:
    text = LAYER.format(mesh="ep = 2", x="ep: S(0)", up="ep: S(0)", tokens=8, rows=16, hidden="")
    text = re.sub(r"(%home = .*) : tensor<16x6", r"\1 : tensor<15x6", text)
    with pytest.raises(spmdir.SpmdirError, match=r"experts\.regroup: result 0 has q = 15; expected 16") as caught:
        spmdir.run_passes(spmdir.parse(text), "propagate")
    assert caught.value.location is not None


PERMUTED = """
spmd.mesh @mesh <ep = 2>

#tokens = #spmd.sharding<@mesh, ep: S(0)>
#experts = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%ids: tensor<6x2xi64> {spmd.sharding = #tokens}, %x: tensor<6x2x6xf64> {spmd.sharding = #tokens},
             %w: tensor<4x6x5xf64> {spmd.sharding = #experts}, %expert: tensor<4xi64>, %place: tensor<4xi64>)
    -> tensor<6x2x5xf64> {
  %moved = aten.index_select(%w, %expert) {dim = 0} : tensor<4x6x5xf64> <ep: S(0)>
  %places = aten.index.Tensor(%place, [%ids]) : tensor<6x2xi64>
  %order, %counts, %arrivals = experts.route(%places) {experts = 4} : tensor<12xi64>, tensor<4xi64>, tensor<4xi64>
  %sorted = experts.sort_rows(%x, %order) : tensor<12x6xf64>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<12x6xf64>
  %y = experts.grouped_mm(%rows, %moved, %arrivals) : tensor<12x5xf64> <ep: Grouped(0)>
  %home = experts.regroup(%y, %counts, %arrivals) : tensor<12x5xf64>
  %out = experts.unsort_rows(%home, %order, %places) : tensor<6x2x5xf64>
  return %out : tensor<6x2x5xf64>
}
"""
"""Experts that move to other ranks. `%expert` is the expert at each place, and `%place` the place of each expert."""


def test_experts_that_move_to_other_ranks_give_the_numbers_of_one_device() -> None:
    module = spmdir.run_passes(spmdir.parse(PERMUTED), "propagate{topology=flat}")
    expert = torch.tensor([2, 0, 3, 1])
    ids, x, w = torch.arange(12).reshape(6, 2) % 4, torch.randn(6, 2, 6).double(), torch.randn(4, 6, 5).double()
    (out,) = spmdir.simulate(module, [ids, x, w, expert, expert.argsort()])
    assert torch.allclose(out, torch.einsum("tkh,tkhf->tkf", x, w[ids]), rtol=1e-12, atol=1e-12)


def gradients(step: Any, state: Any, ids: Tensor, module: Any = None) -> list[Tensor]:
    """Return the loss and the differences of an update of SGD, on one device or on simulated ranks."""
    old = pytree.tree_leaves(state)
    results = spmdir.simulate(module, [*old, ids]) if module else pytree.tree_leaves(step(state, ids))
    changes = [new - before for new, before in zip(results[1:], old, strict=True) if isinstance(before, Tensor)]
    return [results[0], *changes]


def test_the_router_gradient_of_products_by_token_is_that_of_one_device() -> None:
    ids = token_ids(2, 3)
    step, state = training(build("mixtral", "batched_mm"), exact_loss_of)
    module = spmdir.import_fx(make_fx(step, tracing_mode="fake")(state, ids), spmdir.Mesh({"ep": 2}), BY_EXPERT)
    found = gradients(step, state, ids, spmdir.run_passes(module, "propagate"))
    expected = gradients(*training(build("mixtral", "eager"), exact_loss_of), ids)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-13)
