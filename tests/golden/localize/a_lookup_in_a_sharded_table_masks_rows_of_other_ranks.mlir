// RUN: spmd-opt %s --localize
spmd.mesh @mesh <tp = 3>

func.func @main(%table: tensor<11x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %ids: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4x5xf32> {
  %0 = aten.embedding(%table, %ids) : tensor<4x5xf32> <tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<4x5xf32> <>
  return %1 : tensor<4x5xf32>
}

// | spmd.mesh @mesh <tp = 3>
// |
// | func.func @main(%table: tensor<?x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.of = #spmd.shapes<{of = [[11, 5]]}>},
// |                 %ids: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4x5xf32> attributes {spmd.stage = "local"} {
// |   %_0.local_index = spmd.local_index %ids {of = shard(11, tp)} : tensor<4xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<11x5xf32>, tensor<4xi64>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <>>, results = [tensor<4x5xf32>], made = #spmd.shardings<@mesh, <tp: P(sum)>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}}
// |   %_0.clamp = aten.clamp(%_0.local_index) {min = 0} : tensor<4xi64>
// |   %_0.embedding = aten.embedding(%table, %_0.clamp) : tensor<4x5xf32>
// |   %_0.ge = aten.ge.Scalar(%_0.local_index) {other = 0} : tensor<4xi1>
// |   %_0.unsqueeze = aten.unsqueeze(%_0.ge) {dim = -1} : tensor<4x1xi1>
// |   %0 = aten.where.ScalarOther(%_0.unsqueeze, %_0.embedding) {other = 0} : tensor<4x5xf32> <tp: P(sum)>
// |   %1 = spmd.all_reduce %0 on [tp] op sum : tensor<4x5xf32> <>
// |   return %1 : tensor<4x5xf32>
// | }
