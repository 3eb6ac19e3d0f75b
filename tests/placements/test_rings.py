"""Rings in strategies of any op, what is wrong with them, and attention of bands of queries and of keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.limits import RING
from tests.placements import packed_placements

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
DECIDED = "insert-reshard,lower-reshard,localize"
PASSES = f"propagate{{memory=least}},{DECIDED}"


def _product(rows: int, inner: int, ranks: int, placement: str = "S(0)", decided: str = "") -> str:
    """Return a product of a tall matrix and a small one, both and the result with `placement`."""
    given = f"{{spmd.sharding = #spmd.sharding<@mesh, dp: {placement}>}}"
    x, w, y = (f"tensor<{rows}x{inner}xf64>", f"tensor<{inner}x8xf64>", f"tensor<{rows}x8xf64>")
    return f"""spmd.mesh @mesh <dp = {ranks}>
func.func @f(%x: {x} {given}, %w: {w} {given}) -> ({y} {given}) {{
  %0 = aten.mm(%x, %w) : {y}{decided}
  return %0 : {y}
}}"""


def _pipeline(tmp_path: Path, rules: str, passes: str = PASSES) -> spmdir.Pipeline:
    path = tmp_path / "own.rules"
    path.write_text(rules)
    return spmdir.Pipeline(passes, plugins=[str(path)])


@pytest.mark.parametrize(("placement", "inner"), [("S(0)", 32), ("S(0)", 30), ("S(0)", 5), ("ZigZag(0)", 30)])
def test_blocks_of_a_weight_go_round_and_are_multiplied_where_they_are(
    tmp_path: Path, placement: str, inner: int
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(512, inner, dtype=torch.float64), torch.randn(inner, 8, dtype=torch.float64)
    ring = f" <dp: {placement}> needs (<dp: {placement}>, <dp: {placement}>)"
    module, pipeline = spmdir.parse(_product(512, inner, 4, placement, ring)), _pipeline(tmp_path, ROTATED, DECIDED)
    report = spmdir.report.comm_report(spmdir.run_passes(module, pipeline))
    assert {kind: share.count for kind, share in report.by_kind.items()} == {"rotate": 3}
    (found,) = spmdir.simulate(module, [x, w], pipeline=pipeline)
    torch.testing.assert_close(found, x @ w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            f"    ring k: self\n        out = {PRODUCT}\n",
            "'self' moves round a ring, but the strategy does not shard it",
        ),
        (
            f"    some = 2\n    ring k: some\n        out = {PRODUCT}\n",
            "'some' moves round a ring, but is a number or a list of tensors; expected one tensor",
        ),
    ],
    ids=["of what is not sharded over it", "of a number"],
)
def test_a_ring_that_the_strategy_does_not_make_is_an_error_at_its_line(
    tmp_path: Path, body: str, message: str
) -> None:
    with pytest.raises(SpmdirError) as caught:
        spmdir.run_passes(spmdir.parse(_product(512, 32, 4)), _pipeline(tmp_path, f"{HEAD}{body}    return out\n"))
    assert message in str(caught.value)
    assert f"own.rules:{4 + body.startswith('    some')}:5" in str(caught.value)


def test_a_ring_over_a_factor_that_is_not_sharded_is_left_out_with_the_reason(tmp_path: Path) -> None:
    _pipeline(tmp_path, f"{HEAD}    ring n: mat2\n        out = {PRODUCT}\n    return out\n")
    with spmdir.rules.using_rules(str(tmp_path / "own.rules")):
        metas = tuple(spmdir.placement.TensorMeta(shape, "f64") for shape in ((512, 32), (32, 4)))
        reasons = "\n".join(map(str, spmdir.rules.op_strategies("aten.mm", metas, {}, 4, why=True)))
    assert "the ring is over 'n', which the strategy does not shard; expected one of m, k" in reasons


def test_a_ring_of_too_many_ranks_is_left_out_at_once(tmp_path: Path) -> None:
    module, pipeline = spmdir.parse(_product(1 << 18, 1 << 17, 1 << 16)), _pipeline(tmp_path, ROTATED)
    assert "spmd.rotate" not in spmdir.print_ir(spmdir.run_passes(module, pipeline))
    with spmdir.rules.using_rules(str(tmp_path / "own.rules")):
        metas = tuple(spmdir.placement.TensorMeta(shape, "f64") for shape in ((1 << 18, 1 << 17), (1 << 17, 8)))
        (reason,) = (
            one
            for one in map(str, spmdir.rules.op_strategies("aten.mm", metas, {}, 1 << 16, why=True))
            if " ring " in one
        )
    assert f"its ring has 65536 ranks; expected at most {RING.most}" in reason


def _bands(is_causal: bool) -> str:
    """Return attention of a grid of ranks: rank (x, y) has band x of the queries and band y of the keys."""
    kernel, type_ = "aten._scaled_dot_product_flash_attention_for_cpu", "tensor<2x4x32x8xf64>"
    queries, keys = (f"#spmd.sharding<@mesh, {axes}>" for axes in ("x: S(2), y: S(2)", "y: S(2), x: S(2)"))
    made = [f"<x: S(2), y: Decoded({part}, 8)>" for part in range(2)]
    flag = "true" if is_causal else "false"
    return f"""spmd.mesh @mesh <x = 2, y = 4>
func.func @f(%q: {type_} {{spmd.sharding = {queries}}}, %k: {type_} {{spmd.sharding = {keys}}},
             %v: {type_} {{spmd.sharding = {keys}}}) -> ({type_} {{spmd.sharding = {queries}}}) {{
  %0, %1 = {kernel}(%q, %k, %v) {{is_causal = {flag}}} : {type_} {made[0]}, tensor<2x4x32xf64> {made[1]}
  return %0 : {type_}
}}"""


def test_bands_of_queries_and_of_keys_are_gathered_along_two_axes_and_states_scattered() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 32, 8, dtype=torch.float64) for _ in range(3))
    pipeline = spmdir.Pipeline("propagate,insert-reshard,lower-reshard,localize", plugins=[packed_placements.__file__])
    module = spmdir.parse(_bands(is_causal=False))
    report = spmdir.report.comm_report(spmdir.run_passes(module, pipeline))
    shard, logarithms = query.nbytes // 8, query[..., 0].numel() * 8 // 8
    assert {kind: share.wire_bytes for kind, share in report.by_kind.items()} == {
        "all_gather": (4 - 1) * shard + 2 * (2 - 1) * shard,
        "convert": (4 - 1) * (shard + logarithms),
    }
    (found,) = spmdir.simulate(module, [query, key, value], pipeline=pipeline)
    right = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_bands_under_a_causal_mask_are_an_error_since_both_axes_rewrite_the_op(tmp_path: Path) -> None:
    head, *classes = Path(packed_placements.__file__).read_text().split("@attrs.frozen")
    (own,) = (one for one in classes if "class Decoded(" in one)
    text = f"{head}@attrs.frozen{own}".replace("is_causal == false and ", "").replace("Decoded", "Bands")
    (tmp_path / "bands.py").write_text(text)
    pipeline = spmdir.Pipeline("propagate,insert-reshard,lower-reshard,localize", plugins=[str(tmp_path / "bands.py")])
    with pytest.raises(SpmdirError, match=r"<text>:4:3: error: 'aten\._scaled_dot_product") as caught:
        spmdir.run_passes(spmdir.parse(_bands(is_causal=True).replace("Decoded", "Bands")), pipeline)
    assert "factor 'l' of size 32 cannot be sharded into 2 by this op" in str(caught.value)
