// RUN: spmd-opt %s --split-input-file --fuse-collectives
spmd.mesh @mesh <dp = 2, tp = 4>

// Of equal collectives the first one serves; unused ones go, with what only they used.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %b = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %c = spmd.slice %a on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  %d = spmd.all_gather %c on [dp] dim 0 : tensor<16x8xf32> <>
  %y = aten.mul.Tensor(%a, %b) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = aten.mul.Tensor(%a, %a) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
