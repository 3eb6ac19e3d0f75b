// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=fold-slices"
spmd.mesh @mesh <dp = 2, tp = 4>

// One slice over both axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  %y = spmd.slice %a on [dp] dim 1 : tensor<16x8xf32> <tp: S(1), dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %y = spmd.slice %x on [tp, dp] dim 1 : tensor<16x8xf32> <tp: S(1), dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not of different dimensions.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  %y = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %a = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   %y = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
