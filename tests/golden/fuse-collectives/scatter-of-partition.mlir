// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=scatter-of-partition"
spmd.mesh @mesh <dp = 2, tp = 4>

// Partial values made of a value, scattered, are its shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %p = spmd.partition %x on [tp] op max : tensor<16x8xf32> <tp: P(max)>
  %y = spmd.reduce_scatter %p on [tp] dim 1 op max : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %y = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on other axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
  %p = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
  %y = spmd.reduce_scatter %p on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %p = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
// |   %y = spmd.reduce_scatter %p on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
// |   return %y : tensor<16x8xf32>
// | }
