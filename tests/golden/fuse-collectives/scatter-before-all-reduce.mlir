// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=scatter-before-all-reduce"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-reduce is of the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.reduce_scatter = spmd.reduce_scatter %x on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
// |   %y = spmd.all_reduce %x.reduce_scatter on [tp] op sum : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the reduced value is used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0)>
  return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <dp: P(sum)>
// |   %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <dp: S(0)>
// |   return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
// | }
