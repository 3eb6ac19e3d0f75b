// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-of-convert"
spmd.mesh @mesh <tp = 4>

// What loses its padding and is gathered is gathered with it.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.convert %x : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the axis that is gathered is another one.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: Padded(1)>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <dp: S(0), tp: S(1)>
  %y = spmd.all_gather %r on [dp] dim 0 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: Padded(1)>}) -> tensor<16x8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <dp: S(0), tp: S(1)>
// |   %y = spmd.all_gather %r on [dp] dim 0 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the step is lossy: bytes that are scattered have other scales than bytes that are gathered.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %r on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
