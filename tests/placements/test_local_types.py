"""Placements whose ranks hold something else than a shard: padded shards, and values in a lower precision."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

import spmdir
from spmdir import SpmdirError
from spmdir.core.dtype import F32
from spmdir.core.placement.sharding import parse_sharding
from spmdir.simulator.simulate import run_single

MM = """
spmd.mesh @mesh <dp = 4, tp = 2>
func.func @f(%x: tensor<10x6xf32> {{spmd.sharding = #spmd.sharding<@mesh, dp: Padded(0)>}},
             %w: tensor<6x8xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}})
    -> (tensor<{shape}xf32> {{spmd.sharding = #spmd.sharding<@mesh{wanted}>}}) {{
  %0 = aten.mm(%x, %w) : tensor<10x8xf32> <dp: Padded(0), tp: P(sum)>
  %1 = {op} : tensor<{shape}xf32>{placed}
  return %1 : tensor<{shape}xf32>
}}
"""
RELU = MM.format(op="aten.relu(%0)", shape="10x8", wanted=", dp: Padded(0)", placed=" <dp: Padded(0)>")
SUM = MM.format(op="aten.sum.dim_IntList(%0) {dim = [0]}", shape="8", wanted="", placed="")
WEIGHTS = """
spmd.mesh @mesh <dp = 4>
func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<16x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.constraint %w : tensor<64x32xf32> <dp: Shadow(bf16)>
  %1 = aten.mm(%x, %0) : tensor<16x32xf32>
  return %1 : tensor<16x32xf32>
}
"""
PASSES = "propagate{topology=flat},insert-reshard,lower-reshard,localize"


@pytest.mark.parametrize("text", [RELU, SUM], ids=["kept", "summed"])
def test_padding_takes_no_part_in_what_is_computed(text: str) -> None:
    values = [torch.randn(10, 6), torch.randn(6, 8)]
    (found,), (right,) = spmdir.simulate(spmdir.parse(text), values), run_single(spmdir.parse(text), values)
    torch.testing.assert_close(found, right)


def test_all_ranks_hold_padded_shards_of_one_length_beside_a_partial_sum() -> None:
    text = spmdir.print_ir(spmdir.run_passes(spmdir.parse(RELU), PASSES))
    assert "tensor<3x8xf32> <dp: Padded(0), tp: P(sum)> of [10, 8]" in text
    assert "tensor<3x8xf32> <dp: Padded(0)> of [10, 8]" in text
    assert spmdir.print_ir(spmdir.parse(text)) == text


def test_padded_shards_nest() -> None:
    mesh = spmdir.Mesh({"a": 2, "b": 2})
    sharding = spmdir.Sharding(
        [("a", spmdir.placement.parse_placement("Padded(0)")), ("b", spmdir.placement.parse_placement("Padded(0)"))]
    )
    shapes = [sharding.local_shape((5, 2), mesh, mesh.coordinate(rank)) for rank in range(4)]
    assert shapes == [(2, 2)] * 4


def test_weights_are_gathered_in_the_precision_of_their_shadow() -> None:
    module = spmdir.run_passes(spmdir.parse(WEIGHTS), "propagate,insert-reshard,lower-reshard")
    assert spmdir.report.comm_report(module).wire_bytes == 3 * 16 * 32 * 2
    assert "tensor<64x32xbf16> <dp: Shadow(bf16)> of [64, 32, f32]" in spmdir.print_ir(
        spmdir.run_passes(module, "localize")
    )
    x, w = torch.randn(16, 64), torch.randn(64, 32)
    (found,) = spmdir.simulate(spmdir.parse(WEIGHTS), [x, w])
    torch.testing.assert_close(found, x @ w.bfloat16().float())


@pytest.mark.parametrize(
    ("held", "is_bounded"), [("bf16", True), ("f16", False), ("f8E4M3FN", False), ("f8E5M2", False)]
)
def test_the_error_of_a_shadow_is_bounded_only_in_a_type_with_the_range_of_f32(held: str, is_bounded: bool) -> None:
    shadow = spmdir.placement.parse_placement(f"Shadow({held})")
    for scale in (1e6, 1e-12):
        value = scale * torch.randn(64)
        (held_value,) = shadow.distribute(value, 1, torch.zeros_like)
        off = float((held_value.float() - value).abs().max() / value.abs().max())
        assert (off <= 2.0**-8) == is_bounded
    assert shadow.error.bound((64,), 1) == (2.0**-8 if is_bounded else None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("local_shape(self, shape, count, index)", "`local_shape`, which is never called; expected `local_type"),
        ("local_type(self, shape, dtype, count, index)", "declares `local_type`, but its `ranges` determine"),
    ],
)
def test_a_shard_that_says_what_ranks_hold_is_told_what_to_declare(body: str, message: str) -> None:
    with pytest.raises(SpmdirError, match=message):
        exec(f"class Odd(spmdir.placement.ShardPlacement):\n    def {body}: ...", {"spmdir": spmdir})


@attrs.frozen
class AsBytes(spmdir.placement.Placement):
    """Rows of f32 as bytes, with four bytes of a scale behind each."""

    text = "AsBytes"

    def supports(self, dtype: Any) -> bool:
        return dtype.name == "f32"

    def local_type(self, shape: Any, dtype: Any, count: int, index: int) -> Any:
        return (shape[0], shape[1] + 4), "i8"


def test_what_an_axis_leaves_must_be_of_a_type_that_the_next_one_holds() -> None:
    mesh = spmdir.Mesh({"a": 2, "b": 2})
    parse_sharding("a: S(0), b: AsBytes").check_shape(mesh, (6, 8), F32)
    with pytest.raises(
        SpmdirError, match="AsBytes on axis 'b' does not support i8, the element type after the outer axes"
    ):
        parse_sharding("a: AsBytes, b: AsBytes").check_shape(mesh, (6, 8), F32)
