// RUN: spmd-opt %s --localize
spmd.mesh @mesh <tp = 3, dp = 2>

func.func @main(%table: tensor<12x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 2)>}, %ids: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh, dp: Cyclic(0, 1)>}) -> tensor<4x5xf32> {
  %0 = aten.embedding(%table, %ids) : tensor<4x5xf32> <dp: Cyclic(0, 1), tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<4x5xf32> <dp: Cyclic(0, 1)>
  %2 = spmd.all_gather %1 on [dp] dim 0 : tensor<4x5xf32> <>
  return %2 : tensor<4x5xf32>
}

// | spmd.mesh @mesh <tp = 3, dp = 2>
// |
// | func.func @main(%table: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 2)>},
// |                 %ids: tensor<2xi64> {spmd.sharding = #spmd.sharding<@mesh, dp: Cyclic(0, 1)>}) -> tensor<4x5xf32> attributes {spmd.stage = "local"} {
// |   %_0.local_index = spmd.local_index %ids {of = shard(12, tp: Cyclic(0, 2))} : tensor<2xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<12x5xf32>, tensor<4xi64>], needs = #spmd.shardings<@mesh, <tp: Cyclic(0, 2)>, <dp: Cyclic(0, 1)>>, results = [tensor<4x5xf32>], made = #spmd.shardings<@mesh, <dp: Cyclic(0, 1), tp: P(sum)>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}}
// |   %_0.clamp = aten.clamp(%_0.local_index) {min = 0} : tensor<2xi64>
// |   %_0.embedding = aten.embedding(%table, %_0.clamp) : tensor<2x5xf32>
// |   %_0.ge = aten.ge.Scalar(%_0.local_index) {other = 0} : tensor<2xi1>
// |   %_0.unsqueeze = aten.unsqueeze(%_0.ge) {dim = -1} : tensor<2x1xi1>
// |   %0 = aten.where.ScalarOther(%_0.unsqueeze, %_0.embedding) {other = 0} : tensor<2x5xf32> <dp: Cyclic(0, 1), tp: P(sum)>
// |   %1 = spmd.all_reduce %0 on [tp] op sum : tensor<2x5xf32> <dp: Cyclic(0, 1)>
// |   %2 = spmd.all_gather %1 on [dp] dim 0 : tensor<4x5xf32> <>
// |   return %2 : tensor<4x5xf32>
// | }
