// RUN: spmd-opt %s --split-matmul="always=true" --localize --verify-spmd
// The blocks of %x are uneven along tp, so what is assembled of them has a size that the type of a rank does not say.
spmd.mesh @mesh <dp = 2, tp = 3>

func.func @main(%x: tensor<2x4xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}, %w: tensor<4x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(0)>}) -> (tensor<2x2xf64>, tensor<2x4xf64>) {
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<2x4xf64> <tp: S(1)>
  %k = aten.relu(%0) : tensor<2x4xf64> <tp: S(1)>
  %1 = aten.mm(%0, %w) : tensor<2x2xf64> <dp: S(1), tp: P(sum)>
  %2 = spmd.all_reduce %1 on [tp] op sum : tensor<2x2xf64> <dp: S(1)>
  return %2, %k : tensor<2x2xf64>, tensor<2x4xf64>
}

// | spmd.mesh @mesh <dp = 2, tp = 3>
// |
// | func.func @main(%x: tensor<1x?xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>, spmd.of = #spmd.shapes<{of = [[2, 4]]}>},
// |                 %w: tensor<?x1xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>, spmd.of = #spmd.shapes<{of = [[4, 2]]}>}) -> (tensor<2x1xf64>, tensor<2x?xf64>) attributes {spmd.stage = "local"} {
// |   %_1.rotate_start = spmd.rotate_start %x on [dp] {largest = [1, 2]} : !spmd.pending<tensor<1x?xf64>> attributes {spmd.form = {op = "aten.mm", operands = [tensor<2x4xf64>, tensor<4x2xf64>], needs = #spmd.shardings<@mesh, <dp: S(0), tp: S(1)>, <tp: S(0), dp: S(1)>>, results = [tensor<2x2xf64>], made = #spmd.shardings<@mesh, <dp: S(1), tp: P(sum)>>, places = #spmd.arguments<{operands = [[0, 0], [1, 1]], ops = 5, results = [[4, 0]]}>, spmd.split}}
// |   %_1.mm = aten.mm(%x, %w) : tensor<1x1xf64>
// |   %_1.wait = spmd.wait %_1.rotate_start : tensor<1x?xf64>
// |   %_1.mm_1 = aten.mm(%_1.wait, %w) : tensor<1x1xf64>
// |   %1 = spmd.assemble(%_1.mm, %_1.mm_1) {axes = ["dp"], dim = 0} : tensor<2x1xf64> <dp: S(1), tp: P(sum)>
// |   %0 = spmd.assemble(%x, %_1.wait) {axes = ["dp"], dim = 0} : tensor<2x?xf64> <tp: S(1)> of [2, 4] attributes {spmd.form = {op = "spmd.all_gather", operands = [tensor<2x4xf64>], needs = #spmd.shardings<@mesh, <dp: S(0), tp: S(1)>>, results = [tensor<2x4xf64>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 1, results = [[0, 0]]}>, arguments = #spmd.arguments<{axes = ["dp"], dim = 0}>}}
// |   %k = aten.relu(%0) : tensor<2x?xf64> <tp: S(1)> of [2, 4]
// |   %2 = spmd.all_reduce %1 on [tp] op sum : tensor<2x1xf64> <dp: S(1)>
// |   return %2, %k : tensor<2x1xf64>, tensor<2x?xf64>
// | }
