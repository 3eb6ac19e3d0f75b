// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=scatter-after"
spmd.mesh @mesh <dp = 2, tp = 4>

// The sum of two reduce-scatters is the reduce-scatter of the sum.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %b = spmd.reduce_scatter %z on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %y = aten.sub.Tensor(%a, %b) : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = aten.sub.Tensor(%x, %z) : tensor<16x8xf32> <tp: P(sum)>
// |   %y.reduce_scatter = spmd.reduce_scatter %y on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   return %y.reduce_scatter : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A broadcast row, sharded on its only dimension.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 1 op sum : tensor<16x8xf32> <tp: S(1)>
  %b = spmd.reduce_scatter %z on [tp] dim 0 op sum : tensor<8xf32> <tp: S(0)>
  %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = aten.add.Tensor(%x, %z) : tensor<16x8xf32> <tp: P(sum)>
// |   %y.reduce_scatter = spmd.reduce_scatter %y on [tp] dim 1 op sum : tensor<16x8xf32> <tp: S(1)>
// |   return %y.reduce_scatter : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not of a maximum and a sum.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(max)>}) -> tensor<16x8xf32> {
  %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  %b = spmd.reduce_scatter %z on [tp] dim 0 op max : tensor<16x8xf32> <tp: S(0)>
  %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(max)>}) -> tensor<16x8xf32> {
// |   %a = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   %b = spmd.reduce_scatter %z on [tp] dim 0 op max : tensor<16x8xf32> <tp: S(0)>
// |   %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
