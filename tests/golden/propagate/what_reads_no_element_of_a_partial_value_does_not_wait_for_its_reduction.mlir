// RUN: spmd-opt %s --propagate --insert-reshard
// The gradient of a loss begins with ones of its shape: they are there before the loss, which the result alone needs, is reduced.
spmd.mesh @mesh <dp = 8>

func.func @main(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<f32>, tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %loss = aten.sum(%x) : tensor<f32>
  %ones = aten.ones_like(%loss) : tensor<f32>
  %dx = aten.mul.Tensor(%x, %ones) : tensor<4096x1024xf32>
  return %loss, %dx : tensor<f32>, tensor<4096x1024xf32>
}

// | spmd.mesh @mesh <dp = 8>
// |
// | func.func @main(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<f32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %loss = aten.sum(%x) : tensor<f32> <dp: P(sum)>
// |   %ones = aten.ones_like(%loss) : tensor<f32> <>
// |   %dx = aten.mul.Tensor(%x, %ones) : tensor<4096x1024xf32> <dp: S(0)>
// |   %loss.reshard = spmd.reshard %loss : tensor<f32> <>
// |   return %loss.reshard, %dx : tensor<f32>, tensor<4096x1024xf32>
// | }
