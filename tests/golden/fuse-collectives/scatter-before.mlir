// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=scatter-before"
spmd.mesh @mesh <dp = 2, tp = 4>

// Scatter before the value is repeated.
func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.reduce_scatter %e on [tp] dim 1 op sum : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.reduce_scatter = spmd.reduce_scatter %x on [tp] dim 1 op sum : tensor<1x8xf32> <tp: S(1)>
// |   %e = aten.expand(%x.reduce_scatter) {size = [16, 8]} : tensor<16x8xf32> <tp: S(1)>
// |   return %e : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on the dimension along which it is repeated.
func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.reduce_scatter %e on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: P(sum)>
// |   %y = spmd.reduce_scatter %e on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
