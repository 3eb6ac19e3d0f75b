// RUN: spmd-opt %s --inline
spmd.mesh @mesh <tp = 2>

func.func private @layer(%x: tensor<4x8xf32>,
                         %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4x8xf32> {
  %0 = aten.mm(%x, %w) : tensor<4x8xf32>
  %y = aten.relu(%0) : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

func.func @main(%x: tensor<4x8xf32>,
                %w1: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %w2: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %h = func.call @layer(%x, %w1) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = func.call @layer(%h, %w2) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @main(%x: tensor<4x8xf32>,
// |                 %w1: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %w2: tensor<8x8xf32>) -> tensor<4x8xf32> {
// |   %h.mm = aten.mm(%x, %w1) : tensor<4x8xf32>
// |   %h = aten.relu(%h.mm) : tensor<4x8xf32>
// |   %w2_1 = spmd.constraint %w2 : tensor<8x8xf32> <tp: S(1)>
// |   %_1.mm = aten.mm(%h, %w2_1) : tensor<4x8xf32>
// |   %1 = aten.relu(%_1.mm) : tensor<4x8xf32>
// |   return %1 : tensor<4x8xf32>
// | }
