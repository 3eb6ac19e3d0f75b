// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-before-all-reduce"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-reduce is of the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.slice = spmd.slice %x on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
// |   %y = spmd.all_reduce %x.slice on [tp] op sum : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on the axis that is reduced.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = spmd.slice %a on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = spmd.slice %a on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
