// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-of-convert"
spmd.mesh @mesh <tp = 4>

// What is gathered with its padding and sliced only loses it.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %y = spmd.slice %r on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.convert %x : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the axis that is sliced is another one.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Masked>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.slice %r on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Masked>}) -> tensor<16x8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <tp: P(sum)>
// |   %y = spmd.slice %r on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the step is lossy: bytes that are gathered have other scales than bytes that are scattered.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %y = spmd.slice %r on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <>
// |   %y = spmd.slice %r on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
