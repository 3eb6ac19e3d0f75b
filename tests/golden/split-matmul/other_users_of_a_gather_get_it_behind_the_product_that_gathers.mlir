// RUN: spmd-opt %s --split-input-file --split-matmul="always=true" --verify-spmd
// The gradient of the weights needs all rows at once; the other product comes first, and gathers them.
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %t: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<6x4xf32>, tensor<8x6xf32>) {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<8x4xf32> <>
  %d = aten.mm(%t, %g) : tensor<6x4xf32> <tp: S(0)>
  %y = aten.mm(%g, %w) : tensor<8x6xf32> <tp: S(1)>
  return %d, %y : tensor<6x4xf32>, tensor<8x6xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %t: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<6x4xf32>, tensor<8x6xf32>) {
// |   %y = aten.mm(%x, %w) : tensor<8x6xf32> <tp: S(1)> attributes {spmd.split}
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<8x4xf32> <>
// |   %d = aten.mm(%t, %g) : tensor<6x4xf32> <tp: S(0)>
// |   return %d, %y : tensor<6x4xf32>, tensor<8x6xf32>
// | }

// -----
// A product gathers one of its operands, and scatters nothing besides.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(0)>}, %w: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<8x4xf32> <dp: S(1)>
  %y = aten.mm(%g, %w) : tensor<8x8xf32> <dp: P(sum), tp: S(1)>
  %s = spmd.reduce_scatter %y on [dp] dim 0 op sum : tensor<8x8xf32> <dp: S(0), tp: S(1)>
  return %s : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>},
// |                 %w: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
// |   %y = aten.mm(%x, %w) : tensor<8x8xf32> <tp: S(1), dp: P(sum)> attributes {spmd.split}
// |   %s = spmd.reduce_scatter %y on [dp] dim 0 op sum : tensor<8x8xf32> <dp: S(0), tp: S(1)>
// |   return %s : tensor<8x8xf32>
// | }
