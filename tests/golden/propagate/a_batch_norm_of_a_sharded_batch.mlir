// RUN: spmd-opt %s --propagate --insert-reshard --verify-spmd --lower-reshard
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<7x4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %mean: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %var: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0, %1, %2, %3, %4 = aten._native_batch_norm_legit_functional(%x, none, none, %mean, %var) {eps = 1.0e-05, momentum = 0.1, training = true} : tensor<7x4x3xf32> <dp: S(0)>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  return %0, %3, %4 : tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<7x4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %mean: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %var: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<7x4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "lowered"} {
// |   %_0.sum = aten.sum.dim_IntList(%x) {dim = [0, 2], keepdim = true} : tensor<1x4x1xf32> <dp: P(sum)> attributes {spmd.expansion = {op = "aten._native_batch_norm_legit_functional", operands = [tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>], needs = #spmd.shardings<@mesh, <dp: S(0)>, <>, <>>, results = [tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>], made = #spmd.shardings<@mesh, <dp: S(0)>, <>, <>, <>, <>>, places = #spmd.arguments<{operands = [[0, 0], [10, 0], [15, 0]], ops = 18, results = [[8, 0], [9, 0], [17, 0], [12, 0], [16, 0]]}>, arguments = #spmd.arguments<{eps = 1.0e-05, momentum = 0.1, training = true}>, structure = #spmd.structure<{slots = [1, 0, 0, 1, 1]}>}}
// |   %_0.mean = aten.div.Scalar(%_0.sum) {other = 21} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %_0.reshard = spmd.all_reduce %_0.mean on [dp] op sum : tensor<1x4x1xf32> <>
// |   %_0.sub = aten.sub.Tensor(%x, %_0.reshard) : tensor<7x4x3xf32> <dp: S(0)>
// |   %_0.mul = aten.mul.Tensor(%_0.sub, %_0.sub) : tensor<7x4x3xf32> <dp: S(0)>
// |   %_0.sum_1 = aten.sum.dim_IntList(%_0.mul) {dim = [0, 2], keepdim = true} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %_0.mean_1 = aten.div.Scalar(%_0.sum_1) {other = 21} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %_0.reshard_1 = spmd.all_reduce %_0.mean_1 on [dp] op sum : tensor<1x4x1xf32> <>
// |   %_0.add = aten.add.Scalar(%_0.reshard_1) {other = 1.0e-05} : tensor<1x4x1xf32> <>
// |   %_0.rsqrt = aten.rsqrt(%_0.add) : tensor<1x4x1xf32> <>
// |   %0 = aten.mul.Tensor(%_0.sub, %_0.rsqrt) : tensor<7x4x3xf32> <dp: S(0)>
// |   %1 = aten.view(%_0.reshard) {size = [4]} : tensor<4xf32> <>
// |   %_0.mul_2 = aten.mul.Scalar(%mean) {other = 0.9} : tensor<4xf32> <>
// |   %_0.mul_3 = aten.mul.Scalar(%1) {other = 0.1} : tensor<4xf32> <>
// |   %3 = aten.add.Tensor(%_0.mul_2, %_0.mul_3) : tensor<4xf32> <>
// |   %_0.view_1 = aten.view(%_0.reshard_1) {size = [4]} : tensor<4xf32> <>
// |   %_0.mul_4 = aten.mul.Scalar(%_0.view_1) {other = 0.10500000000000001} : tensor<4xf32> <>
// |   %_0.mul_5 = aten.mul.Scalar(%var) {other = 0.9} : tensor<4xf32> <>
// |   %4 = aten.add.Tensor(%_0.mul_5, %_0.mul_4) : tensor<4xf32> <>
// |   %2 = aten.view(%_0.rsqrt) {size = [4]} : tensor<4xf32> <>
// |   return %0, %3, %4 : tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>
// | }
