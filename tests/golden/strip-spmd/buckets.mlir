// RUN: spmd-opt %s --strip-spmd
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
                %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x8xf32>, tensor<8xf32>) {
  %0, %1 = spmd.all_reduce_start %x, %y on [tp] op sum : !spmd.pending<tensor<4x8xf32>> <>, !spmd.pending<tensor<8xf32>> <>
  %2, %3 = spmd.wait %0, %1 : tensor<4x8xf32> <>, tensor<8xf32> <>
  %4 = aten.neg(%3) : tensor<8xf32> <>
  return %2, %4 : tensor<4x8xf32>, tensor<8xf32>
}

// | func.func @main(%x: tensor<4x8xf32>,
// |                 %y: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>) {
// |   %4 = aten.neg(%y) : tensor<8xf32>
// |   return %x, %4 : tensor<4x8xf32>, tensor<8xf32>
// | }
