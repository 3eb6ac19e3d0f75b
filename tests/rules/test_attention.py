"""Attention as a program, forward and backward, plain, causal and masked: batch, heads, positions and keys sharded."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import spmdir
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import f, sample
from spmdir.checking.rules.soundness import call_of, prepare
from spmdir.core.placement.standard import R, Shard
from spmdir.rules.rule_set import default

MESH = spmdir.Mesh({"dp": 2, "tp": 3})
POSITIONS, KEYS = 7, 8


def heads(groups: int = 1, keys: int = KEYS) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((3, 4, POSITIONS, 6), (3, 4 // groups, keys, 6), (3, 4 // groups, keys, 6))
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return q, k, v


def mask() -> Tensor:
    """Return what each position sees; the last one sees nothing."""
    seen = torch.rand(POSITIONS, KEYS, generator=torch.Generator().manual_seed(1)) > 0.4
    seen[:, 0], seen[-1] = True, False
    return seen


def check(
    inputs: tuple[Tensor, ...], shardings: dict[str, str], backend: SDPBackend | None = None, **options: Any
) -> None:
    """Value and gradients of attention equal those of one device."""

    def step(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (query, key, value)]
        given = bias if bias is None or bias.dtype == torch.bool else bias.detach().requires_grad_()
        with sdpa_kernel(backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            made = F.scaled_dot_product_attention(*leaves, attn_mask=given, **options)
        leaves += [given] if given is not None and given.requires_grad else []
        return made.detach(), *torch.autograd.grad(made.square().sum(), leaves)

    module = spmdir.import_fx(make_fx(lambda q, k, v, *bias: step(q, k, v, *bias))(*inputs), MESH, shardings)
    for found, right in zip(spmdir.simulate(module, list(inputs)), step(*inputs), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)


def forward(inputs: tuple[Tensor, ...], shardings: dict[str, str], **options: Any) -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, seen, **options)

    module = spmdir.import_fx(torch.export.export(Attention(), inputs), MESH, shardings)
    (found,) = spmdir.simulate(module, list(inputs))
    torch.testing.assert_close(found, Attention()(*inputs), rtol=1e-9, atol=1e-11)


EVERYWHERE = ("dp: S(0), tp: S(1)", "dp: S(0), tp: S(2)", "dp: S(1), tp: S(2)", "dp: S(2), tp: S(2)")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharding", EVERYWHERE)
def test_the_kernel_and_its_backward_are_sharded_wherever_their_operands_are(sharding: str, causal: bool):
    check(heads(), {f"input:{i}": sharding for i in range(3)}, is_causal=causal)
    forward(heads(), {f"input:{i}": sharding for i in range(3)}, is_causal=causal)


def test_sharded_query_positions_of_causal_attention_send_nothing():
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    exported = torch.export.export(Attention(), heads())
    module = spmdir.import_fx(exported, MESH, {"query": "tp: S(2)", "key": "", "value": ""}, out_shardings=["tp: S(2)"])
    spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,fuse-collectives")
    assert not spmdir.report.comm_report(module).count


@pytest.mark.parametrize("sharding", EVERYWHERE[:2])
def test_grouped_queries_share_the_key_heads_of_their_rank(sharding: str):
    shardings = {f"input:{i}": sharding for i in range(3)}
    check(heads(groups=2), shardings, enable_gqa=True, is_causal=True)
    forward(heads(groups=2), shardings, enable_gqa=True)


@pytest.mark.parametrize("sharding", EVERYWHERE)
def test_a_mask_is_cut_with_the_scores(sharding: str):
    shardings = {f"input:{i}": sharding for i in range(3)}
    forward((*heads(), mask()), shardings)
    check((*heads(), mask()), shardings)


def test_a_mask_that_learns_gets_its_gradient():
    bias = torch.randn(1, 4, POSITIONS, KEYS, dtype=torch.float64)
    check((*heads(), bias), {"input:0": "dp: S(0), tp: S(2)", "input:1": "tp: S(1)"})


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_in_plain_ops_is_sharded_as_well(causal: bool):
    check(heads(), {f"input:{i}": "dp: S(1), tp: S(2)" for i in range(3)}, SDPBackend.MATH, is_causal=causal)


@pytest.mark.parametrize(
    "op",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ],
)
def test_kernels_of_cuda_devices_shard_batch_and_heads_beside_their_seeds(op: str):
    for one in (s for s in all_samples(default()) if s.op == f"aten.{op}"):
        call, _, _ = call_of(one)
        rule = default().instantiate(call)
        assert rule is not None
        rows = [row for row in rule.strategies(2) if row.factors]
        assert {row.results[0] for row in rows} >= {Shard(0), Shard(1)}
        assert all(placement == R for row in rows for placement in row.results[2:])


@pytest.mark.parametrize("op", ["scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"])
@pytest.mark.parametrize(("scale", "sharded"), [(None, True), (0.5, True), (0.0, False), (-1.0, False), (inf, False)])
def test_positions_of_causal_attention_are_sharded_if_its_scale_is_positive(
    op: str, scale: float | None, sharded: bool
) -> None:
    sizes = (1, 2, 8, 4)
    found = prepare(sample(op, f(*sizes), f(*sizes), f(*sizes), is_causal=True, scale=scale), default()).rule
    by_name = {factor.name: index for index, factor in enumerate(found.factors)}
    for name in "ls":
        assert any(by_name[name] in strategy.factors for strategy in found.strategies(2)) == sharded
