// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-of-f-of-all-reduce"
spmd.mesh @mesh <dp = 2, tp = 4>

// A transposition stands between: the other dimension is scattered.
func.func @main(%x: tensor<1024x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<512x1024xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<1024x512xf32> <>
  %t = aten.t(%r) : tensor<512x1024xf32> <>
  %y = spmd.slice %t on [tp] dim 0 : tensor<512x1024xf32> <tp: S(0)>
  return %y : tensor<512x1024xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<1024x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<512x1024xf32> {
// |   %x.reduce_scatter = spmd.reduce_scatter %x on [tp] dim 1 op sum : tensor<1024x512xf32> <tp: S(1)>
// |   %t = aten.t(%x.reduce_scatter) : tensor<512x1024xf32> <tp: S(0)>
// |   return %t : tensor<512x1024xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// An op that is not linear may follow a reduce-scatter as well.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %t = aten.exp(%r) : tensor<16x8xf32> <>
  %y = spmd.slice %t on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %x.reduce_scatter = spmd.reduce_scatter %x on [tp] dim 1 op sum : tensor<16x8xf32> <tp: S(1)>
// |   %t = aten.exp(%x.reduce_scatter) : tensor<16x8xf32> <tp: S(1)>
// |   return %t : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not through an op that needs the cut dimension whole.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %t = aten.flip(%r) {dims = [0]} : tensor<16x8xf32> <>
  %y = spmd.slice %t on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %t = aten.flip(%r) {dims = [0]} : tensor<16x8xf32> <>
// |   %y = spmd.slice %t on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
