// RUN: spmd-opt %s --split-input-file --fuse-collectives --verify-spmd
spmd.mesh @mesh <dp = 2, tp = 4>

// A tensor-parallel pair of branches and a slice: two all-reduces become one reduce-scatter.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = aten.mm(%x, %w) : tensor<16x8xf32> <tp: P(sum)>
  %b = spmd.all_reduce %a on [tp] op sum : tensor<16x8xf32> <>
  %c = aten.mm(%z, %w) : tensor<16x8xf32> <tp: P(sum)>
  %d = spmd.all_reduce %c on [tp] op sum : tensor<16x8xf32> <>
  %e = aten.add.Tensor(%b, %d) {alpha = 2} : tensor<16x8xf32> <>
  %f = aten.relu(%e) : tensor<16x8xf32> <>
  %g = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %g : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %a = aten.mm(%x, %w) : tensor<16x8xf32> <tp: P(sum)>
// |   %c = aten.mm(%z, %w) : tensor<16x8xf32> <tp: P(sum)>
// |   %e = aten.add.Tensor(%a, %c) {alpha = 2} : tensor<16x8xf32> <tp: P(sum)>
// |   %e.reduce_scatter = spmd.reduce_scatter %e on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   %f = aten.relu(%e.reduce_scatter) : tensor<16x8xf32> <tp: S(0)>
// |   return %f : tensor<16x8xf32>
// | }
