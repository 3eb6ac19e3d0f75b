// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-of-scatter"
spmd.mesh @mesh <dp = 2, tp = 4>

// Both halves of an all-reduce.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the shards are used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %r = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
  %z = aten.relu(%r) : tensor<16x8xf32> <tp: S(0)>
  return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %r = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
// |   %z = aten.relu(%r) : tensor<16x8xf32> <tp: S(0)>
// |   return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
// | }
