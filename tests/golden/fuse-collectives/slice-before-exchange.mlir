// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-before-exchange"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-to-all is of the shards.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.slice %a on [dp] dim 2 : tensor<8x8x8xf32> <tp: S(1), dp: S(2)>
  return %y : tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
// |   %x.slice = spmd.slice %x on [dp] dim 2 : tensor<8x8x8xf32> <tp: S(0), dp: S(2)>
// |   %y = spmd.all_to_all %x.slice on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1), dp: S(2)>
// |   return %y : tensor<8x8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on a dimension that the all-to-all cuts: the nesting order would be another.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.slice %a on [dp] dim 1 : tensor<8x8x8xf32> <tp: S(1), dp: S(1)>
  return %y : tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
// |   %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
// |   %y = spmd.slice %a on [dp] dim 1 : tensor<8x8x8xf32> <tp: S(1), dp: S(1)>
// |   return %y : tensor<8x8x8xf32>
// | }
