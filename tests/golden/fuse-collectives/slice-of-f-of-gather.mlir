// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-of-f-of-gather"
spmd.mesh @mesh <dp = 2, tp = 4>

// The op runs on the shards.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x16xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %f = aten.t(%g) : tensor<8x16xf32> <>
  %y = spmd.slice %f on [tp] dim 1 : tensor<8x16xf32> <tp: S(1)>
  return %y : tensor<8x16xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x16xf32> {
// |   %f = aten.t(%x) : tensor<8x16xf32> <tp: S(1)>
// |   return %f : tensor<8x16xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if another dimension is sliced than was gathered.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %f = aten.relu(%g) : tensor<16x8xf32> <>
  %y = spmd.slice %f on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %f = aten.relu(%g) : tensor<16x8xf32> <>
// |   %y = spmd.slice %f on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
