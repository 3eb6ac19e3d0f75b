// RUN: spmd-opt %s --inline
spmd.mesh @mesh <dp = 2>

// The constraint of a function that is called stays a constraint.
func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x4xf32> {
  %y = func.call @rounded(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

func.func private @rounded(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Shadow(bf16)>}) -> tensor<8x4xf32> {
  %y = aten.relu(%x) : tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x4xf32> {
// |   %x_1 = spmd.constraint %x : tensor<8x4xf32> <dp: Shadow(bf16)>
// |   %y = aten.relu(%x_1) : tensor<8x4xf32>
// |   return %y : tensor<8x4xf32>
// | }
