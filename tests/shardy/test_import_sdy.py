"""`sdy` text as programs, as JAX's tools print it, and located errors for what spmdir cannot represent."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.shardy.import_sdy import import_sdy

# What Shardy's `sdy-propagation-pipeline` in jaxlib 0.10.2 makes of an exported program.
PROPAGATED = """\
module {
  sdy.mesh @mesh = <["dp"=2, "tp"=4]> {spmd.intra = ["tp"], stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}]}}
  func.func public @f(%arg0: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, \
spmd.kind = "parameter", spmd.name = "x"}, %arg1: tensor<64x64xf32> {spmd.name = "w.0_1"}) -> (tensor<16x64xf32> \
{sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp":(1)2}]>}) {
    %0 = stablehlo.custom_call @aten.mm(%arg0, %arg1) {backend_config = "", sdy.sharding = \
#sdy.sharding_per_value<[<@mesh, [{"dp"}, {"tp":(1)2}]>]>, sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], \
[k, j])->([i, j]) {i=16, j=64, k=64} reduction={k}, custom>} : (tensor<16x64xf32>, tensor<64x64xf32>) -> \
tensor<16x64xf32>
    %1:2 = stablehlo.custom_call @aten.split.Tensor(%0) {backend_config = "{dim = 1, split_size = 32}"} : \
(tensor<16x64xf32>) -> (tensor<16x32xf32>, tensor<16x32xf32>)
    %2 = stablehlo.custom_call @aten.cat(%1#1, %1#0) {api_version = 1 : i32, backend_config = "{dim = 1}", \
spmd.slots = "{slots = [[1, 1]]}"} : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x64xf32>
    %3 = sdy.reshard %2 <@mesh, [{"dp"}, {"tp":(1)2}]> : tensor<16x64xf32>
    %4:2 = stablehlo.custom_call @my.pair(%3) {backend_config = "{text = \\22a\\22}", \
spmd.results = [true, false, true]} : (tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<4xf32>)
    return %4#0 : tensor<16x64xf32>
  }
}
"""

EXPECTED = """\
spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]

func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.kind = "parameter"},
             %w.0_1: tensor<64x64xf32> {spmd.name = "w.0_1"}) -> (tensor<16x64xf32> \
{spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp(1)2: S(1)>}) {
  %0 = aten.mm(%x, %w.0_1) : tensor<16x64xf32> <dp: S(0), tp(1)2: S(1)>
  %1, %5 = aten.split.Tensor(%0) {dim = 1, split_size = 32} : tensor<16x32xf32>, tensor<16x32xf32>
  %2 = aten.cat([%5, %1]) {dim = 1} : tensor<16x64xf32>
  %3 = spmd.reshard %2 : tensor<16x64xf32> <dp: S(0), tp(1)2: S(1)>
  %4, %6, %7 = my.pair(%3) {text = "a"} : tensor<16x64xf32>, none, tensor<4xf32>
  return %4 : tensor<16x64xf32>
}
"""


def test_text_that_shardy_printed_is_read() -> None:
    assert ir.print_ir(import_sdy(PROPAGATED)) == EXPECTED


MESH = 'sdy.mesh @mesh = <["dp"=2]>\n'
HEAD = MESH + "func.func @f(%x: tensor<16x8xf32>"
CALL = HEAD + ") {\n  %0 = stablehlo.custom_call "
ONE = "(tensor<16x8xf32>) -> tensor<16x8xf32>\n  return\n}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + ' {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}p1, {}]>}) {\n  return\n}',
            "p.mlir:2:64: error: dimension 0 has priority 1; expected none, since spmdir has no priorities",
        ),
        (
            HEAD + " {sdy.sharding = #sdy.sharding<@mesh, [{?}, {}]>}) {\n  return\n}",
            "p.mlir:2:1: error: 'func.func': argument %x: dimension 0 is open and dimension 1 is closed; "
            "expected all open or all closed, since spmdir leaves axes open for all dimensions: open or close all, "
            "or list dp in replicated",
        ),
        (
            HEAD + " {tf.aliasing_output = 0 : i32}) {\n  return\n}",
            "p.mlir:2:1: error: 'func.func': argument %x: has the attribute tf.aliasing_output, which spmdir does not "
            "support; expected no such attribute: remove it",
        ),
        (
            "func.func @f() {\n  return\n}",
            "p.mlir:1:1: error: 'builtin.module': the module declares 0 meshes; expected one `sdy.mesh`",
        ),
        (
            MESH + 'sdy.mesh @other = <["dp"=2]>\n',
            "p.mlir:2:1: error: 'sdy.mesh': the module declares 2 meshes; expected one `sdy.mesh`",
        ),
        (
            'sdy.mesh @mesh = <["dp"=2], device_ids=[1, 0]>\n',
            "p.mlir:1:18: error: the mesh has device_ids; expected none, since spmdir numbers ranks row-major",
        ),
        ("sdy.mesh @mesh = <dp=2>\n", "p.mlir:1:18: error: found '<dp=2>'; expected axes, as in <[\"dp\"=2]>"),
        ('sdy.mesh @mesh = <["dp"=0]>\n', "p.mlir:1:1: error: 'sdy.mesh': mesh axis 'dp' has size 0"),
        (
            CALL + '@Sharding(%x) {backend_config = ""} : ' + ONE,
            "p.mlir:3:3: error: 'stablehlo.custom_call': calls @Sharding; expected a torch op, as in @aten.mm",
        ),
        (
            CALL + '@aten.relu(%x) {backend_config = "{dim = "} : ' + ONE,
            "p.mlir:3:3: error: 'stablehlo.custom_call': backend_config is \"{dim = \"; expected the arguments of a "
            'torch op, as in "{dim = 1}"',
        ),
        (
            CALL + '@aten.relu(%x) {backend_config = "", spmd.slots = "{slots = [[1, 1]]}"} : ' + ONE,
            "p.mlir:3:3: error: 'stablehlo.custom_call': has 1 operands; expected spmd.slots to place each of them",
        ),
        (
            CALL + '@aten.relu(%x) {backend_config = "", spmd.results = [true, true]} : ' + ONE,
            "p.mlir:3:3: error: 'stablehlo.custom_call': has 1 results, but spmd.results lists 2",
        ),
        (
            CALL + '@aten.relu(%x) {backend_config = "", has_side_effect = true} : ' + ONE,
            "p.mlir:3:3: error: 'stablehlo.custom_call': has the attribute has_side_effect, which spmdir does not "
            "support",
        ),
        (
            CALL + '@aten.rellu(%x) {backend_config = ""} : ' + ONE,
            "p.mlir:3:3: error: 'aten.rellu': is not an op of torch",
        ),
        (
            HEAD + ") {\n  %0 = aten.relu(%x) : tensor<16x8xf32>\n  return\n}",
            "p.mlir:3:3: error: 'aten.relu': has no counterpart in the IR; expected custom calls of torch ops",
        ),
        (
            HEAD + ") {\n  %0 = stablehlo.add %x, %x : tensor<16x8xf32>\n  return\n}",
            "p.mlir:3:3: error: unknown op 'stablehlo.add'; expected an op of a dialect, of torch",
        ),
        (
            HEAD + ') {\n  %0 = sdy.reshard %x <@mesh, [{"dp"}]> : tensor<16x8xf32>\n  return\n}',
            "p.mlir:3:3: error: 'sdy.reshard': the sharding has 1 dimensions, but the tensor has 2",
        ),
    ],
)
def test_what_spmdir_cannot_represent_is_a_located_error(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        import_sdy(text, "p.mlir")
    assert str(error.value).startswith(message)
