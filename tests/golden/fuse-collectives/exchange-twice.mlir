// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-twice"
spmd.mesh @mesh <dp = 2, tp = 4>

// Two all-to-all in a row.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 2 : tensor<8x8x8xf32> <tp: S(2)>
  return %y : tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8x8xf32> {
// |   %y = spmd.all_to_all %x on [tp] from 0 to 2 : tensor<8x8x8xf32> <tp: S(2)>
// |   return %y : tensor<8x8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if what is between is used too.
func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8x8x8xf32>, tensor<8x8x8xf32>) {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 2 : tensor<8x8x8xf32> <tp: S(2)>
  return %y, %a : tensor<8x8x8xf32>, tensor<8x8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8x8x8xf32>, tensor<8x8x8xf32>) {
// |   %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<8x8x8xf32> <tp: S(1)>
// |   %y = spmd.all_to_all %a on [tp] from 1 to 2 : tensor<8x8x8xf32> <tp: S(2)>
// |   return %y, %a : tensor<8x8x8xf32>, tensor<8x8x8xf32>
// | }
