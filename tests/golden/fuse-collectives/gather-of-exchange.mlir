// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-of-exchange"
spmd.mesh @mesh <dp = 2, tp = 4>

// All shards come together anyway.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  %y = spmd.all_gather %a on [tp] dim 1 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on other axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>}) -> tensor<16x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <dp: S(1), tp: S(1)>
  %y = spmd.all_gather %a on [dp, tp] dim 1 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <dp: S(1), tp: S(1)>
// |   %y = spmd.all_gather %a on [dp, tp] dim 1 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
