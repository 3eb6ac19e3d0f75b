// RUN: spmd-opt %s --localize
spmd.mesh @mesh <cp = 2>

func.func @main(%q: tensor<1x2x7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>}, %k: tensor<1x2x7x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<1x2x7x4xf32> {
  %0 = aten.scaled_dot_product_attention(%q, %k, %k) {dropout_p = 0.0, is_causal = true} : tensor<1x2x7x4xf32> <cp: ZigZag(2)>
  %1 = spmd.all_gather %0 on [cp] dim 2 : tensor<1x2x7x4xf32> <>
  return %1 : tensor<1x2x7x4xf32>
}

// | spmd.mesh @mesh <cp = 2>
// |
// | func.func @main(%q: tensor<1x2x?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(2)>, spmd.of = #spmd.shapes<{of = [[1, 2, 7, 4]]}>},
// |                 %k: tensor<1x2x7x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<1x2x7x4xf32> attributes {spmd.stage = "local"} {
// |   %_0.arange = aten.arange() {end = 7} : tensor<7xi64> attributes {spmd.form = {op = "aten.scaled_dot_product_attention", operands = [tensor<1x2x7x4xf32>, tensor<1x2x7x4xf32>, tensor<1x2x7x4xf32>], needs = #spmd.shardings<@mesh, <cp: ZigZag(2)>, <>, <>>, results = [tensor<1x2x7x4xf32>], made = #spmd.shardings<@mesh, <cp: ZigZag(2)>>, places = #spmd.arguments<{operands = [[4, 0], [6, 1], [6, 2]], ops = 7, results = [[6, 0]]}>, arguments = #spmd.arguments<{dropout_p = 0.0, is_causal = true}>}}
// |   %_0.positions = spmd.positions {of = shard(7, cp: ZigZag(0))} : tensor<?xi64>
// |   %_0.unsqueeze = aten.unsqueeze(%_0.positions) {dim = 1} : tensor<?x1xi64>
// |   %_0.gt = aten.gt.Tensor(%_0.arange, %_0.unsqueeze) : tensor<?x7xi1>
// |   %_0.new_zeros = aten.new_zeros(%q) {size = [size(7, cp: ZigZag(0)), 7]} : tensor<?x7xf32>
// |   %_0.masked_fill = aten.masked_fill.Scalar(%_0.new_zeros, %_0.gt) {value = -inf} : tensor<?x7xf32>
// |   %0 = aten.scaled_dot_product_attention(%q, %k, %k, %_0.masked_fill) {dropout_p = 0, is_causal = false} : tensor<1x2x?x4xf32> <cp: ZigZag(2)> of [1, 2, 7, 4]
// |   %1 = spmd.all_gather %0 on [cp] dim 2 : tensor<1x2x7x4xf32> <>
// |   return %1 : tensor<1x2x7x4xf32>
// | }
