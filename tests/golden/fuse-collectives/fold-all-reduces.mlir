// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=fold-all-reduces"
spmd.mesh @mesh <dp = 2, tp = 4>

// One all-reduce over both axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.all_reduce %a on [dp] op sum : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_reduce %x on [tp, dp] op sum : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not of different reductions.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(avg), tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(avg)>
  %y = spmd.all_reduce %a on [dp] op avg : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(avg), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(avg)>
// |   %y = spmd.all_reduce %a on [dp] op avg : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
