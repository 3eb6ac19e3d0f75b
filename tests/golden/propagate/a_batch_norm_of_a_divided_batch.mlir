// RUN: --propagate --insert-reshard --verify-spmd --lower-reshard
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
// |                 %var: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<7x4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
// |   %0 = aten.sum.dim_IntList(%x) {dim = [0, 2], keepdim = true} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %1 = aten.div.Scalar(%0) {other = 21} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %2 = spmd.all_reduce %1 on [dp] op sum : tensor<1x4x1xf32> <>
// |   %3 = aten.sub.Tensor(%x, %2) : tensor<7x4x3xf32> <dp: S(0)>
// |   %4 = aten.mul.Tensor(%3, %3) : tensor<7x4x3xf32> <dp: S(0)>
// |   %5 = aten.sum.dim_IntList(%4) {dim = [0, 2], keepdim = true} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %6 = aten.div.Scalar(%5) {other = 21} : tensor<1x4x1xf32> <dp: P(sum)>
// |   %7 = spmd.all_reduce %6 on [dp] op sum : tensor<1x4x1xf32> <>
// |   %8 = aten.add.Scalar(%7) {other = 1.0e-05} : tensor<1x4x1xf32> <>
// |   %9 = aten.rsqrt(%8) : tensor<1x4x1xf32> <>
// |   %10 = aten.mul.Tensor(%3, %9) : tensor<7x4x3xf32> <dp: S(0)>
// |   %11 = aten.view(%2) {size = [4]} : tensor<4xf32> <>
// |   %12 = aten.mul.Scalar(%mean) {other = 0.9} : tensor<4xf32> <>
// |   %13 = aten.mul.Scalar(%11) {other = 0.1} : tensor<4xf32> <>
// |   %14 = aten.add.Tensor(%12, %13) : tensor<4xf32> <>
// |   %15 = aten.view(%7) {size = [4]} : tensor<4xf32> <>
// |   %16 = aten.mul.Scalar(%15) {other = 0.10500000000000001} : tensor<4xf32> <>
// |   %17 = aten.mul.Scalar(%var) {other = 0.9} : tensor<4xf32> <>
// |   %18 = aten.add.Tensor(%17, %16) : tensor<4xf32> <>
// |   %19 = aten.view(%9) {size = [4]} : tensor<4xf32> <>
// |   return %10, %14, %18 : tensor<7x4x3xf32>, tensor<4xf32>, tensor<4xf32>
// | }
