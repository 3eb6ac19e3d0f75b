"""Rings in strategies of any op, what is wrong with them, and attention whose queries and keys are gathered by bands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.limits import RING

HEAD = """\
aten.mm: (shard(m), shard(k)) -> (shard(m))
    local
    out = aten.new_zeros(self, [size(m), count(n)])
"""
PRODUCT = "aten.mm(aten.index_select(self, 1, positions(k)), mat2)"
ROTATED = f"""{HEAD}
    ring k: mat2
        out = aten.add.Tensor(out, {PRODUCT}) if both(m, k)
    return out
"""
PASSES = "propagate{gathered-byte=1000},insert-reshard,lower-reshard,localize"


def _product(rows: int, inner: int, ranks: int, placement: str = "S(0)") -> str:
    """Return a product of a tall matrix and a small one, both and the result with `placement`."""
    given = f"{{spmd.sharding = #spmd.sharding<@mesh, dp: {placement}>}}"
    x, w, y = (f"tensor<{rows}x{inner}xf64>", f"tensor<{inner}x8xf64>", f"tensor<{rows}x8xf64>")
    return f"""spmd.mesh @mesh <dp = {ranks}>
func.func @f(%x: {x} {given}, %w: {w} {given}) -> ({y} {given}) {{
  %0 = aten.mm(%x, %w) : {y}
  return %0 : {y}
}}"""


def _pipeline(tmp_path: Path, rules: str) -> spmdir.Pipeline:
    path = tmp_path / "own.rules"
    path.write_text(rules)
    return spmdir.Pipeline(PASSES, plugins=[str(path)])


@pytest.mark.parametrize(("placement", "inner"), [("S(0)", 32), ("S(0)", 30), ("S(0)", 5), ("ZigZag(0)", 30)])
def test_blocks_of_a_weight_go_round_and_are_multiplied_where_they_are(
    tmp_path: Path, placement: str, inner: int
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(512, inner, dtype=torch.float64), torch.randn(inner, 8, dtype=torch.float64)
    module, pipeline = spmdir.parse(_product(512, inner, 4, placement)), _pipeline(tmp_path, ROTATED)
    report = spmdir.comm_report(spmdir.run_passes(module, pipeline))
    assert {kind: share.count for kind, share in report.by_kind.items()} == {"rotate": 3}
    (found,) = spmdir.simulate(module, [x, w], pipeline=pipeline)
    torch.testing.assert_close(found, x @ w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            f"    ring n: mat2\n        out = {PRODUCT}\n",
            "a ring of 'n', and the strategy shards m, k; expected one of these",
        ),
        (
            f"    ring k: self\n        out = {PRODUCT}\n",
            "'self' goes round a ring, and the strategy does not shard it",
        ),
        (f"    some = 2\n    ring k: some\n        out = {PRODUCT}\n", "'some' goes round a ring; expected one tensor"),
    ],
    ids=["over a factor that is not sharded", "of what is not sharded over it", "of a number"],
)
def test_a_ring_that_the_strategy_does_not_make_is_an_error_at_its_line(
    tmp_path: Path, body: str, message: str
) -> None:
    with pytest.raises(SpmdirError) as caught:
        spmdir.run_passes(spmdir.parse(_product(512, 32, 4)), _pipeline(tmp_path, f"{HEAD}{body}    return out\n"))
    assert message in str(caught.value)
    assert f"own.rules:{4 + body.startswith('    some')}:5" in str(caught.value)


def test_a_ring_of_too_many_ranks_is_left_out_at_once(tmp_path: Path) -> None:
    module, pipeline = spmdir.parse(_product(1 << 18, 1 << 17, 1 << 16)), _pipeline(tmp_path, ROTATED)
    assert "spmd.rotate" not in spmdir.print_ir(spmdir.run_passes(module, pipeline))
    with spmdir.load_rules(str(tmp_path / "own.rules")):
        metas = tuple(spmdir.TensorMeta(shape, "f64") for shape in ((1 << 18, 1 << 17), (1 << 17, 8)))
        (reason,) = (
            one for one in map(str, spmdir.strategies("aten.mm", metas, {}, 1 << 16, why=True)) if " ring " in one
        )
    assert f"its ring has 65536 ranks; expected at most {RING.most}" in reason
