// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-before-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// The all-to-all is of the shards.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8x8xf32> {
  %a = spmd.all_gather %x on [dp] dim 0 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 2 : tensor<8x8x8xf32> <tp: S(2)>
  return %y : tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8x8xf32> {
// |   %x.all_to_all = spmd.all_to_all %x on [tp] from 1 to 2 : tensor<8x8x8xf32> <dp: S(0), tp: S(2)>
// |   %y = spmd.all_gather %x.all_to_all on [dp] dim 0 : tensor<8x8x8xf32> <tp: S(2)>
// |   return %y : tensor<8x8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on the dimension that is gathered.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8x8xf32> {
  %a = spmd.all_gather %x on [dp] dim 0 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 0 : tensor<8x8x8xf32> <tp: S(0)>
  return %y : tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8x8xf32> {
// |   %a = spmd.all_gather %x on [dp] dim 0 : tensor<8x8x8xf32> <tp: S(1)>
// |   %y = spmd.all_to_all %a on [tp] from 1 to 0 : tensor<8x8x8xf32> <tp: S(0)>
// |   return %y : tensor<8x8x8xf32>
// | }
