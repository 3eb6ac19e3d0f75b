// RUN: spmd-opt %s --cse

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>) {
  %0 = aten.relu(%x) : tensor<16x64xf32> <dp: S(0)>
  %1 = aten.relu(%x) : tensor<16x64xf32> <dp: S(0)>
  %2 = aten.relu(%x) : tensor<16x64xf32> <dp: S(0), tp: S(1)>
  %3 = aten.add.Tensor(%0, %1) : tensor<16x64xf32> <dp: S(0)>
  %4 = aten.bernoulli.p(%x) {p = 0.5} : tensor<16x64xf32> <>
  %5 = aten.bernoulli.p(%x) {p = 0.5} : tensor<16x64xf32> <>
  %6 = aten.mul.Scalar(%x) {other = 1} : tensor<16x64xf32> <dp: S(0)>
  %7 = aten.mul.Scalar(%x) {other = 1.0} : tensor<16x64xf32> <dp: S(0)>
  %8 = aten.add.Tensor(%6, %7) : tensor<16x64xf32> <dp: S(0)>
  return %2, %3, %5, %8 : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>) {
// |   %0 = aten.relu(%x) : tensor<16x64xf32> <dp: S(0)>
// |   %2 = aten.relu(%x) : tensor<16x64xf32> <dp: S(0), tp: S(1)>
// |   %3 = aten.add.Tensor(%0, %0) : tensor<16x64xf32> <dp: S(0)>
// |   %4 = aten.bernoulli.p(%x) {p = 0.5} : tensor<16x64xf32> <>
// |   %5 = aten.bernoulli.p(%x) {p = 0.5} : tensor<16x64xf32> <>
// |   %6 = aten.mul.Scalar(%x) {other = 1} : tensor<16x64xf32> <dp: S(0)>
// |   %7 = aten.mul.Scalar(%x) {other = 1.0} : tensor<16x64xf32> <dp: S(0)>
// |   %8 = aten.add.Tensor(%6, %7) : tensor<16x64xf32> <dp: S(0)>
// |   return %2, %3, %5, %8 : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>
// | }
