// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-of-f-of-slice"
spmd.mesh @mesh <dp = 2, tp = 4>

// An elementwise op on shards that are gathered at once runs on the replicated value instead.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %f = aten.gelu(%s) : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %f on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %f = aten.gelu(%x) : tensor<16x8xf32> <>
// |   return %f : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not a contraction: it would be repeated on every rank.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %f = aten.mm(%s, %w) : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %f on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   %f = aten.mm(%s, %w) : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %f on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
