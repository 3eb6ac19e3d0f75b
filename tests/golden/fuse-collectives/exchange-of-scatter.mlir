// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-of-scatter"
spmd.mesh @mesh <dp = 2, tp = 4>

// Scattered along the right dimension at once.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_to_all %a on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = spmd.reduce_scatter %x on [tp] dim 1 op sum : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the shards are used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_to_all %a on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_to_all %a on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
// | }
