// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-and-back"
spmd.mesh @mesh <dp = 2, tp = 4>

// There and back.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   return %x : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not by part of the axes.
func.func @main(%x: tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x16xf32> {
  %a = spmd.all_to_all %x on [dp, tp] from 0 to 1 : tensor<16x16xf32> <dp: S(1), tp: S(1)>
  %y = spmd.all_to_all %a on [tp] from 1 to 0 : tensor<16x16xf32> <tp: S(0), dp: S(1)>
  return %y : tensor<16x16xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<16x16xf32> {
// |   %a = spmd.all_to_all %x on [dp, tp] from 0 to 1 : tensor<16x16xf32> <dp: S(1), tp: S(1)>
// |   %y = spmd.all_to_all %a on [tp] from 1 to 0 : tensor<16x16xf32> <tp: S(0), dp: S(1)>
// |   return %y : tensor<16x16xf32>
// | }
