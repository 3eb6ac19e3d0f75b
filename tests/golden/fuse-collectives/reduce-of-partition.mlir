// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=reduce-of-partition"
spmd.mesh @mesh <dp = 2, tp = 4>

// Partial values made of a value are the value.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %p = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.all_reduce %p on [tp] op sum : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   return %x : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on other axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
  %p = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
  %y = spmd.all_reduce %p on [dp] op sum : tensor<16x8xf32> <tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %p = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
// |   %y = spmd.all_reduce %p on [dp] op sum : tensor<16x8xf32> <tp: P(sum)>
// |   return %y : tensor<16x8xf32>
// | }
