// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=scatter-before-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-gather is of the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 1 op sum : tensor<16x8xf32> <dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.reduce_scatter = spmd.reduce_scatter %x on [dp] dim 1 op sum : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   %y = spmd.all_gather %x.reduce_scatter on [tp] dim 0 : tensor<16x8xf32> <dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on the dimension that is gathered.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
// |   %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
