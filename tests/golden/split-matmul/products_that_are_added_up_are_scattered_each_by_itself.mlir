// RUN: spmd-opt %s --split-input-file --split-matmul="always=true" --verify-spmd
spmd.mesh @mesh <tp = 2>

func.func @added(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %b: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %v: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<6x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x6xf32> {
  %0 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: P(sum)>
  %1 = aten.mm(%b, %w) : tensor<8x6xf32> <tp: P(sum)>
  %2 = aten.add.Tensor(%0, %1) : tensor<8x6xf32> <tp: P(sum)>
  %3 = spmd.reduce_scatter %2 on [tp] dim 0 op sum : tensor<8x6xf32> <tp: S(0)>
  return %3 : tensor<8x6xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @added(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %b: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %v: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %w: tensor<6x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x6xf32> {
// |   %0 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: S(0)> attributes {spmd.split}
// |   %1 = aten.mm(%b, %w) : tensor<8x6xf32> <tp: S(0)> attributes {spmd.split}
// |   %3 = aten.add.Tensor(%0, %1) : tensor<8x6xf32> <tp: S(0)>
// |   return %3 : tensor<8x6xf32>
// | }

// -----
// What others use is not split, nor what is a sum of something else too.
spmd.mesh @mesh <tp = 2>

func.func @used(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %v: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %p: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
  %0 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<8x6xf32> <>
  %2 = spmd.reduce_scatter %0 on [tp] dim 0 op sum : tensor<8x6xf32> <tp: S(0)>
  %3 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: P(sum)>
  %4 = aten.add.Tensor(%3, %p) : tensor<8x6xf32> <tp: P(sum)>
  %5 = spmd.reduce_scatter %4 on [tp] dim 0 op sum : tensor<8x6xf32> <tp: S(0)>
  return %1, %2, %5 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @used(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %v: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %p: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>) {
// |   %0 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: P(sum)>
// |   %1 = spmd.all_reduce %0 on [tp] op sum : tensor<8x6xf32> <>
// |   %2 = spmd.reduce_scatter %0 on [tp] dim 0 op sum : tensor<8x6xf32> <tp: S(0)>
// |   %3 = aten.mm(%a, %v) : tensor<8x6xf32> <tp: P(sum)>
// |   %4 = aten.add.Tensor(%3, %p) : tensor<8x6xf32> <tp: P(sum)>
// |   %5 = spmd.reduce_scatter %4 on [tp] dim 0 op sum : tensor<8x6xf32> <tp: S(0)>
// |   return %1, %2, %5 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<8x6xf32>
// | }
