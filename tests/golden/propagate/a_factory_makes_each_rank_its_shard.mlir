// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.ones() {dtype = f32, size = [64, 32]} : tensor<64x32xf32>
  %1 = aten.arange() {end = 64, dtype = i64} : tensor<64xi64>
  %2 = aten.unsqueeze(%1) {dim = 1} : tensor<64x1xi64>
  %3 = aten.mul.Tensor(%0, %2) : tensor<64x32xf32>
  %4 = aten.mul.Tensor(%x, %3) : tensor<64x32xf32>
  return %4 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.ones() {dtype = f32, size = [64, 32]} : tensor<64x32xf32> <dp: S(0)>
// |   %1 = aten.arange() {dtype = i64, end = 64} : tensor<64xi64> <dp: S(0)>
// |   %2 = aten.unsqueeze(%1) {dim = 1} : tensor<64x1xi64> <dp: S(0)>
// |   %3 = aten.mul.Tensor(%0, %2) : tensor<64x32xf32> <dp: S(0)>
// |   %4 = aten.mul.Tensor(%x, %3) : tensor<64x32xf32> <dp: S(0)>
// |   return %4 : tensor<64x32xf32>
// | }
