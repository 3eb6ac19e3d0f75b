// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-of-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// Each rank takes back the shard it gave.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   return %x : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Inner axes are gathered, and axes cut beside are cut.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [dp, tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not in another nesting order: other ranks hold those shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [dp, tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp, dp] dim 0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
// |   %g = spmd.all_gather %x on [dp, tp] dim 0 : tensor<16x8xf32> <>
// |   %y = spmd.slice %g on [tp, dp] dim 0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
