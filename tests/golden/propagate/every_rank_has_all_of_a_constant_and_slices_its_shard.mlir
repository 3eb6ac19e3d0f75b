// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<4xui8> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4xui8> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.constant value "00010203" : tensor<4xui8>
  %1 = aten.add.Tensor(%x, %0) : tensor<4xui8>
  return %1 : tensor<4xui8>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<4xui8> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4xui8> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = spmd.constant value "00010203" : tensor<4xui8> <>
// |   %_0.reshard = spmd.reshard %0 : tensor<4xui8> <dp: S(0)>
// |   %1 = aten.add.Tensor(%x, %_0.reshard) : tensor<4xui8> <dp: S(0)>
// |   return %1 : tensor<4xui8>
// | }
