// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-of-slice"
spmd.mesh @mesh <dp = 2, tp = 4>

// Sliced along the right dimension at once.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_to_all %a on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %y = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if other axes are moved.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.slice %x on [dp] dim 0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
  %y = spmd.all_to_all %a on [tp, dp] from 0 to 1 : tensor<16x8xf32> <tp: S(1), dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %a = spmd.slice %x on [dp] dim 0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
// |   %y = spmd.all_to_all %a on [tp, dp] from 0 to 1 : tensor<16x8xf32> <tp: S(1), dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
