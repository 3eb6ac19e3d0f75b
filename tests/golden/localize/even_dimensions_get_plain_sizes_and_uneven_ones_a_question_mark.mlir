// RUN: spmd-opt %s --localize
spmd.mesh @mesh <dp = 2, tp = 3>

func.func @main(%x: tensor<8x7xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x7xf32> {
  %0 = aten.relu(%x) : tensor<8x7xf32> <dp: S(0), tp: S(1)>
  %1 = spmd.all_gather %0 on [tp] dim 1 : tensor<8x7xf32> <dp: S(0)>
  return %1 : tensor<8x7xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 3>
// |
// | func.func @main(%x: tensor<4x?xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>, spmd.of = #spmd.shapes<{of = [[8, 7]]}>}) -> tensor<4x7xf32> attributes {spmd.stage = "local"} {
// |   %0 = aten.relu(%x) : tensor<4x?xf32> <dp: S(0), tp: S(1)> of [8, 7]
// |   %1 = spmd.all_gather %0 on [tp] dim 1 : tensor<4x7xf32> <dp: S(0)>
// |   return %1 : tensor<4x7xf32>
// | }
