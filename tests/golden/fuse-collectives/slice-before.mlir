// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-before"
spmd.mesh @mesh <dp = 2, tp = 4>

// Cut before computing what is sliced away.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %e = aten.exp(%x) : tensor<16x8xf32> <>
  %f = aten.add.Tensor(%e, %b) : tensor<16x8xf32> <>
  %y = spmd.slice %f on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %x.slice = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   %e = aten.exp(%x.slice) : tensor<16x8xf32> <tp: S(1)>
// |   %b.slice = spmd.slice %b on [tp] dim 0 : tensor<8xf32> <tp: S(0)>
// |   %f = aten.add.Tensor(%e, %b.slice) : tensor<16x8xf32> <tp: S(1)>
// |   return %f : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the gathered value is used too, nor before an op that needs the dimension unsharded.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %e = aten.exp(%x) : tensor<16x8xf32> <>
  %f = aten.flip(%e) {dims = [0]} : tensor<16x8xf32> <>
  %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %z = spmd.slice %e on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %e = aten.exp(%x) : tensor<16x8xf32> <>
// |   %f = aten.flip(%e) {dims = [0]} : tensor<16x8xf32> <>
// |   %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   %z = spmd.slice %e on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y, %z : tensor<16x8xf32>, tensor<16x8xf32>
// | }
