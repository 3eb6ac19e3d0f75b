// RUN: spmd-opt %s --localize --split-async --verify-spmd
// A slice is local: each rank keeps a part of what it has.
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.slice %x on [dp] dim 0 : tensor<8x4xf32> <dp: S(0)>
  return %0 : tensor<8x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %0 = spmd.slice %x on [dp] dim 0 : tensor<4x4xf32> <dp: S(0)>
// |   return %0 : tensor<4x4xf32>
// | }
