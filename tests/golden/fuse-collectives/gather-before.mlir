// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-before"
spmd.mesh @mesh <dp = 2, tp = 4>

// Gather before the cast to the larger type.
func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %e on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %x.all_gather = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xbf16> <>
// |   %e = aten._to_copy(%x.all_gather) {dtype = f32} : tensor<16x8xf32> <>
// |   return %e : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the cast shards are used too, which would cast twice.
func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %e on [tp] dim 0 : tensor<16x8xf32> <>
  %z = aten.relu(%e) : tensor<16x8xf32> <tp: S(0)>
  return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %e on [tp] dim 0 : tensor<16x8xf32> <>
// |   %z = aten.relu(%e) : tensor<16x8xf32> <tp: S(0)>
// |   return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not before a contraction, which every rank would repeat.
func.func @main(%x: tensor<16x2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %e = aten.mm(%x, %w) : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %e on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %w: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %e = aten.mm(%x, %w) : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %e on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
