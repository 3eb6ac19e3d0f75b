// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=all-reduce-before-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-reduce is of the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.all_reduce %a on [dp] op sum : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.all_reduce = spmd.all_reduce %x on [dp] op sum : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %x.all_reduce on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the gathered partial values are used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.all_reduce %a on [dp] op sum : tensor<16x8xf32> <>
  return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: P(sum)>
// |   %y = spmd.all_reduce %a on [dp] op sum : tensor<16x8xf32> <>
// |   return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
// | }
