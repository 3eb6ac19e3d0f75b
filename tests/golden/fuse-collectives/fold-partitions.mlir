// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=fold-partitions"
spmd.mesh @mesh <dp = 2, tp = 4>

// One partition over both axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.partition %a on [dp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %y = spmd.partition %x on [tp, dp] op sum : tensor<16x8xf32> <dp: P(sum), tp: P(sum)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not of different reductions.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.partition %a on [dp] op avg : tensor<16x8xf32> <dp: P(avg), tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %a = spmd.partition %x on [tp] op sum : tensor<16x8xf32> <tp: P(sum)>
// |   %y = spmd.partition %a on [dp] op avg : tensor<16x8xf32> <dp: P(avg), tp: P(sum)>
// |   return %y : tensor<16x8xf32>
// | }
