// RUN: spmd-opt %s --localize --bucket="memory=1GB" --verify-spmd | spmd report - --view timeline
// An exchange names no axes: its shardings say between which ranks it is. Those between the same ranks are one message, in which each rank
// has for each other one what all members send it, although members split differently. The last one is between fewer ranks and stays apart.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}, %y: tensor<4x6x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>}, %z: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x8xf32>, tensor<4x6x3xf32>, tensor<8x8xf32>) {
  %0 = spmd.exchange %x : tensor<8x8xf32> <tp: S(0), dp: S(1)>
  %1 = spmd.exchange %y : tensor<4x6x3xf32> <dp: S(0), tp: S(1)>
  %2 = spmd.exchange %z : tensor<8x8xf32> <dp: S(1)>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<4x6x3xf32>, tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |                 %y: tensor<2x3x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>},
// |                 %z: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4x4xf32>, tensor<2x3x3xf32>, tensor<8x4xf32>) attributes {spmd.stage = "scheduled"} {
// |   %0, %1 = spmd.exchange %x, %y : tensor<4x4xf32> <tp: S(0), dp: S(1)>, tensor<2x3x3xf32> <dp: S(0), tp: S(1)>
// |   %2 = spmd.exchange %z : tensor<8x4xf32> <dp: S(1)>
// |   return %0, %1, %2 : tensor<4x4xf32>, tensor<2x3x3xf32>, tensor<8x4xf32>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op            live
// |      0.0    14.0  compute  %0 exchange   536 B
// |     14.0    22.4  dp, tp   %0 exchange
// |     14.0    22.4  compute  waits for %0  536 B
// |     22.4    26.4  compute  %2 exchange   592 B
// |     26.4    33.6  dp       %2 exchange
// |     26.4    33.6  compute  waits for %2  592 B
