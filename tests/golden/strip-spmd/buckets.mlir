// RUN: spmd-opt %s --strip-spmd
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
                %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x8xf32>, tensor<8xf32>) {
  %b = spmd.bucket %x, %y : tensor<40xf32> <tp: P(sum)>
  %0, %1 = spmd.unbucket %b : tensor<4x8xf32> <tp: P(sum)>, tensor<8xf32> <tp: P(sum)>
  %2 = aten.neg(%1) : tensor<8xf32> <tp: P(sum)>
  return %0, %2 : tensor<4x8xf32>, tensor<8xf32>
}

// | func.func @main(%x: tensor<4x8xf32>,
// |                 %y: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>) {
// |   %2 = aten.neg(%y) : tensor<8xf32>
// |   return %x, %2 : tensor<4x8xf32>, tensor<8xf32>
// | }
