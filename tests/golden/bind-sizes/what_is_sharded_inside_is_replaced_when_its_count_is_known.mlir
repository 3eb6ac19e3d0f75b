// RUN: spmd-opt %s --propagate="topology=flat" --bind-sizes="s0=4097" --expand --insert-reshard
spmd.mesh @mesh <tp = 2>

spmd.sizes {s0 = 4096 in 2..}

func.func @main(%x: tensor<512x4096xf32, #spmd.dims<512, s0>> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<512x4096xf32, #spmd.dims<512, s0>> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %n = aten.sym_size.int(%x, 1) : !spmd.size<s0>
  %0 = aten.layer_norm(%x) {normalized_shape = [%n]} : tensor<512x[s0]xf32>
  return %0 : tensor<512x4096xf32, #spmd.dims<512, s0>>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @main(%x: tensor<512x4097xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<512x4097xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "resharded", spmd.decided_by = "propagate{topology=flat}"} {
// |   %_0.sum = aten.sum.dim_IntList(%x) {dim = [1], keepdim = true} : tensor<512x1xf32> <tp: P(sum)> attributes {spmd.expansion = {op = "aten.layer_norm", operands = [tensor<512x4097xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<512x4097xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 9, results = [[8, 0]]}>, arguments = #spmd.arguments<{normalized_shape = [4097]}>}}
// |   %_0.native_layer_norm_1 = aten.div.Scalar(%_0.sum) {other = 4097} : tensor<512x1xf32> <tp: P(sum)>
// |   %_0.reshard = spmd.reshard %_0.native_layer_norm_1 : tensor<512x1xf32> <>
// |   %_0.sub = aten.sub.Tensor(%x, %_0.reshard) : tensor<512x4097xf32> <tp: S(1)>
// |   %_0.mul = aten.mul.Tensor(%_0.sub, %_0.sub) : tensor<512x4097xf32> <tp: S(1)>
// |   %_0.sum_1 = aten.sum.dim_IntList(%_0.mul) {dim = [1], keepdim = true} : tensor<512x1xf32> <tp: P(sum)>
// |   %_0.mean_1 = aten.div.Scalar(%_0.sum_1) {other = 4097} : tensor<512x1xf32> <tp: P(sum)>
// |   %_0.reshard_1 = spmd.reshard %_0.mean_1 : tensor<512x1xf32> <>
// |   %_0.add = aten.add.Scalar(%_0.reshard_1) {other = 1.0e-05} : tensor<512x1xf32> <>
// |   %_0.native_layer_norm_2 = aten.rsqrt(%_0.add) : tensor<512x1xf32> <>
// |   %0 = aten.mul.Tensor(%_0.sub, %_0.native_layer_norm_2) : tensor<512x4097xf32> <tp: S(1)>
// |   return %0 : tensor<512x4097xf32>
// | }
