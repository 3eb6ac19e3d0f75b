// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=fold-gathers"
spmd.mesh @mesh <dp = 2, tp = 4>

// One all-gather over both axes, in nesting order.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  %y = spmd.all_gather %a on [dp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_gather %x on [dp, tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not of different dimensions.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<16x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 1 : tensor<16x8xf32> <dp: S(0)>
  %y = spmd.all_gather %a on [dp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_gather %x on [tp] dim 1 : tensor<16x8xf32> <dp: S(0)>
// |   %y = spmd.all_gather %a on [dp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
