// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<5x2xi64> {
  %0 = aten.nonzero(%x) : tensor<5x2xi64>
  return %0 : tensor<5x2xi64>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<5x2xi64> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<16x8xf32> <>
// |   %0 = aten.nonzero(%x.reshard) : tensor<5x2xi64> <>
// |   return %0 : tensor<5x2xi64>
// | }
