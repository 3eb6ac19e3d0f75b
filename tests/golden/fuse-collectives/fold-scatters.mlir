// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=fold-scatters"
spmd.mesh @mesh <dp = 2, tp = 4>

// One reduce-scatter over both axes, in nesting order.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0), dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 0 op sum : tensor<16x8xf32> <tp: S(0), dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = spmd.reduce_scatter %x on [tp, dp] dim 0 op sum : tensor<16x8xf32> <tp: S(0), dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not to different dimensions.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0), dp: P(sum)>
  %y = spmd.reduce_scatter %a on [dp] dim 1 op sum : tensor<16x8xf32> <tp: S(0), dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0), dp: P(sum)>
// |   %y = spmd.reduce_scatter %a on [dp] dim 1 op sum : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
