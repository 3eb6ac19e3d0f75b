"""The bounds of programs with caches, and the tokens that fit in memory."""

from __future__ import annotations

import math

import pytest

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.report import serving_report

TEXT = """
spmd.mesh @mesh <tp = 2>

func.func @decode(%w: tensor<64x8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                  %e: tensor<10x8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh>},
                  %k: tensor<4x16x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>},
                  %ids: tensor<4x1xi64>, %positions: tensor<4x1xi64>, %x: tensor<4x64xf32>)
    -> (tensor<4x1x2x4xf32>, tensor<4x16x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %y = aten.mm(%x, %w) : tensor<4x8xf32>
  %embedded = aten.embedding(%e, %ids) : tensor<4x1x8xf32>
  %rows = aten.reshape(%y) {shape = [4, 1, 2, 4]} : tensor<4x1x2x4xf32>
  %others = aten.reshape(%embedded) {shape = [4, 1, 2, 4]} : tensor<4x1x2x4xf32>
  %sum = aten.add.Tensor(%rows, %others) : tensor<4x1x2x4xf32>
  %k.1 = cache.write(%k, %sum, %positions) : tensor<4x16x2x4xf32>
  %z = cache.attend(%sum, %k.1, %k.1, %positions) : tensor<4x1x2x4xf32>
  return %z, %k.1 : tensor<4x1x2x4xf32>, tensor<4x16x2x4xf32>
}
"""


def test_a_bound_is_the_largest_time_of_a_resource() -> None:
    module = spmdir.run_passes(spmdir.parse(TEXT), "propagate{memory=8kB}")
    report = serving_report(module, length=4)
    (decode,) = report.programs
    assert (decode.sequences, decode.tokens, report.capacity) == (4, 1, 64)
    assert report.parameter_bytes == 64 * 4 * 4 + 10 * 8 * 4
    assert report.token_bytes == 1 * 4 * 4  # one head of 4 numbers
    # Of the embedding, a few rows are read; of the cache, 4 of 16 rows.
    assert decode.bounds["memory"] == pytest.approx((64 * 4 * 4 + 16 * 4 * 4) / 3.35e12)
    assert decode.bound == max(decode.bounds.values()) <= decode.seconds
    used = decode.peak_bytes - 64 * report.token_bytes
    assert report.fitting_tokens == (8000 - used) // 16
    assert "tokens fit, and the caches hold 64" in str(report)


def test_a_length_has_rows_in_the_caches() -> None:
    module = spmdir.run_passes(spmdir.parse(TEXT), "propagate{memory=none}")
    assert math.isinf(serving_report(module).fitting_tokens)
    with pytest.raises(SpmdirError, match="length is 17; expected 1 to 16, the rows of a sequence in the caches"):
        serving_report(module, length=17)
    with pytest.raises(SpmdirError, match="@decode is not decided; run propagate before the report"):
        serving_report(spmdir.parse(TEXT))


def test_a_program_may_have_no_caches() -> None:
    text = (
        "spmd.mesh @mesh <tp = 2>\nfunc.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}"
    )
    assert repr(serving_report(spmdir.parse(text))) == "<ServingReport: the program has no caches>"
