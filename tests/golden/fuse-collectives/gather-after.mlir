// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-after"
spmd.mesh @mesh <dp = 2, tp = 4>

// Gather after the cast to the smaller type.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = aten._to_copy(%g) {dtype = bf16} : tensor<16x8xbf16> <>
  return %y : tensor<16x8xbf16>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
// |   %y = aten._to_copy(%x) {dtype = bf16} : tensor<16x8xbf16> <tp: S(0)>
// |   %y.all_gather = spmd.all_gather %y on [tp] dim 0 : tensor<16x8xbf16> <>
// |   return %y.all_gather : tensor<16x8xbf16>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// One gather for two operands, whatever the op.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %h = spmd.all_gather %z on [tp] dim 0 : tensor<16x8xf32> <>
  %y = aten.mul.Tensor(%g, %h) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = aten.mul.Tensor(%x, %z) : tensor<16x8xf32> <tp: S(0)>
// |   %y.all_gather = spmd.all_gather %y on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y.all_gather : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not past a view that would have the shards packed.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x16xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = aten.t(%g) : tensor<8x16xf32> <>
  return %y : tensor<8x16xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x16xf32> {
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %y = aten.t(%g) : tensor<8x16xf32> <>
// |   return %y : tensor<8x16xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not past an op that needs the dimension unsharded.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = aten.flip(%g) {dims = [0]} : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %y = aten.flip(%g) {dims = [0]} : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
