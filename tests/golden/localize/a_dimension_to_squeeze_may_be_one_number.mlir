// RUN: spmd-opt %s --localize

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<2x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<2x1xf32> {
  %0 = aten.squeeze.dims(%x) {dim = 0} : tensor<2x1xf32> <dp: S(0)>
  return %0 : tensor<2x1xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<1x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<1x1xf32> attributes {spmd.stage = "local"} {
// |   %0 = aten.squeeze.dims(%x) {dim = []} : tensor<1x1xf32> <dp: S(0)> attributes {spmd.form = {op = "aten.squeeze.dims", operands = [tensor<2x1xf32>], needs = #spmd.shardings<@mesh, <dp: S(0)>>, results = [tensor<2x1xf32>], made = #spmd.shardings<@mesh, <dp: S(0)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 1, results = [[0, 0]]}>, arguments = #spmd.arguments<{dim = 0}>}}
// |   return %0 : tensor<1x1xf32>
// | }
