// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=all-reduce-before"
spmd.mesh @mesh <dp = 2, tp = 4>

// Reduce before the value is repeated.
func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.all_reduce %e on [tp] op sum : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.all_reduce = spmd.all_reduce %x on [tp] op sum : tensor<1x8xf32> <>
// |   %e = aten.expand(%x.all_reduce) {size = [16, 8]} : tensor<16x8xf32> <>
// |   return %e : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not before a cast to a larger type: partial values would be summed in the smaller one.
func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.all_reduce %e on [tp] op sum : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: P(sum)>
// |   %y = spmd.all_reduce %e on [tp] op sum : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
