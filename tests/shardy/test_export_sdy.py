"""Programs as `sdy` text, and located errors for what it cannot represent."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.rules.rule_set import default
from spmdir.shardy.export_sdy import export_sdy

LAYER = """\
spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]

func.func @layer(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>},
                 %w: tensor<64x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>, spmd.kind = "parameter"})
    -> (tensor<16x128xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w) : tensor<16x128xf32> <dp: S(0), tp: S(1)>
  %1 = spmd.constraint %0 : tensor<16x128xf32> <dp: S(0), tp: ?>
  %2 = aten.sum.dim_IntList(%1) {dim = [1], keepdim = true} : tensor<16x1xf32>
  %3 = aten.add.Tensor(%1, %2) : tensor<16x128xf32>
  return %3 : tensor<16x128xf32>
}
"""

EXPECTED = """\
sdy.mesh @mesh = <["dp"=2, "tp"=4]> {spmd.intra = ["tp"]}

func.func @layer(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp", ?}, {?}]>, spmd.name = "x"},
                 %w: tensor<64x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>, spmd.kind = "parameter", \
spmd.name = "w"}) -> (tensor<16x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) {
  %0 = stablehlo.custom_call @aten.mm(%x, %w) {backend_config = "", \
sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {"tp"}]>]>, \
sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=16, j=64, k=128} reduction={j}, custom>} : \
(tensor<16x64xf32>, tensor<64x128xf32>) -> tensor<16x128xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"dp", ?}, {?}]> : tensor<16x128xf32>
  %2 = stablehlo.custom_call @aten.sum.dim_IntList(%1) {backend_config = "{dim = [1], keepdim = true}", \
sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k]) {i=16, j=128, k=1} reduction={j} \
need_replication={k}, custom>} : (tensor<16x128xf32>) -> tensor<16x1xf32>
  %3 = stablehlo.custom_call @aten.add.Tensor(%1, %2) {backend_config = "", \
sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [i, k])->([i, j]) {i=16, j=128, k=1} \
need_replication={k}, custom>} : (tensor<16x128xf32>, tensor<16x1xf32>) -> tensor<16x128xf32>
  return %3 : tensor<16x128xf32>
}
"""


def test_a_program_is_translated_op_by_op() -> None:
    assert export_sdy(ir.parse(LAYER), default()) == EXPECTED


HEAD = "spmd.mesh @mesh <dp = 2, tp = 4>\nfunc.func @f(%x: tensor<16x8xf32>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + " {spmd.sharding = #spmd.sharding<@mesh, dp: P(max)>}) {\n  return\n}",
            "p.mlir:2:1: error: 'func.func': argument %x: P(max) on axis 'dp' has no counterpart in sdy; "
            "expected S, R, P(sum) or an open axis",
        ),
        (
            HEAD + ") -> (tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Cyclic(0, 2)>}) {\n"
            "  return %x : tensor<16x8xf32>\n}",
            "p.mlir:2:1: error: 'func.func': result 0: Cyclic(0, 2) on axis 'dp' has no counterpart in sdy; "
            "expected S, R, P(sum) or an open axis",
        ),
        (
            HEAD + ") {\n  %0 = aten.slice.Tensor(%x) {dim = 0, end = 7} : tensor<7x8xf32> <dp: S(0)>\n  return\n}",
            "p.mlir:3:3: error: 'aten.slice.Tensor': dimension 0 of size 7 is sharded over 2 ranks; "
            "expected a size that the ranks divide, since sdy pads uneven shards and spmdir does not: "
            "choose such a size",
        ),
        (
            HEAD + ") {\n  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: S(0)> needs (<dp: S(0)>)\n  return\n}",
            "p.mlir:3:3: error: 'aten.relu': requires other shardings of its operands, which sdy cannot represent; "
            "expected reshards of these operands: run --insert-reshard first",
        ),
        (
            HEAD + " {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {\n"
            "  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <>\n  return\n}",
            "p.mlir:3:3: error: 'spmd.all_gather': has no counterpart in sdy; expected no collectives, "
            "calls and symbolic sizes: export the program before --lower-reshard",
        ),
        (
            "spmd.mesh @mesh <dp = 2>\nspmd.sizes {s0 = 8 in 2..64}\nfunc.func @f() {\n  return\n}",
            "p.mlir:2:1: error: 'spmd.sizes': the program has symbolic sizes, which Shardy does not have; expected "
            "numbers: bind the sizes with --bind-sizes",
        ),
        (
            "func.func @f(%x: tensor<8xf32>) {\n  return\n}",
            "p.mlir:1:1: error: the module declares no mesh; expected one `spmd.mesh @mesh <dp = 2>`",
        ),
    ],
)
def test_what_sdy_cannot_represent_is_a_located_error(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        export_sdy(ir.parse(text, "p.mlir"), default())
    assert str(error.value) == message


def test_the_program_of_a_rank_is_an_error() -> None:
    module = ir.parse(
        'spmd.mesh @mesh <dp = 2>\nfunc.func @f(%x: tensor<8xf32>) attributes {spmd.stage = "local"} {\n  return\n}'
    )
    with pytest.raises(
        SpmdirError, match="is the program of one rank; expected a program before --localize: export that one"
    ):
        export_sdy(module, default())
