// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-before-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-gather is of the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %a on [dp] dim 1 : tensor<16x8xf32> <dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %x.slice = spmd.slice %x on [dp] dim 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   %y = spmd.all_gather %x.slice on [tp] dim 0 : tensor<16x8xf32> <dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on the dimension that is gathered: other ranks hold those shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %y = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
