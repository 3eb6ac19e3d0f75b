// RUN: spmd-opt %s --split-input-file --fuse-collectives
spmd.mesh @mesh <tp = 4>

// The half of an all-reduce that is sliced is a reduce-scatter.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op "Norm(2)" : tensor<16x8xf32> <>
  %y = spmd.slice %r on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<16x8xf32> {
// |   %y = spmd.reduce_scatter %x on [tp] dim 0 op "Norm(2)" : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Two axes are reduced at once.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Norm(2), tp: Norm(2)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op "Norm(2)" : tensor<16x8xf32> <dp: Norm(2)>
  %r = spmd.all_reduce %a on [dp] op "Norm(2)" : tensor<16x8xf32> <>
  %y = spmd.slice %r on [dp, tp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Norm(2), tp: Norm(2)>}) -> tensor<16x8xf32> {
// |   %y = spmd.reduce_scatter %x on [dp, tp] dim 0 op "Norm(2)" : tensor<16x8xf32> <dp: S(0), tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A shard of a value that was made partial is a slice.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> tensor<16x8xf32> {
  %p = spmd.partition %x on [tp] op "Masked" : tensor<16x8xf32> <dp: S(1), tp: Masked>
  %y = spmd.reduce_scatter %p on [tp] dim 0 op "Masked" : tensor<16x8xf32> <tp: S(0), dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> tensor<16x8xf32> {
// |   %y = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// What moves elements comes before the reduction.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<8xf32> {
  %r = spmd.all_reduce %x on [tp] op "Norm(2)" : tensor<16x8xf32> <>
  %y = aten.select.int(%r) {dim = 0, index = 1} : tensor<8xf32> <>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<8xf32> {
// |   %y = aten.select.int(%x) {dim = 0, index = 1} : tensor<8xf32> <tp: Norm(2)>
// |   %y.all_reduce = spmd.all_reduce %y on [tp] op "Norm(2)" : tensor<8xf32> <>
// |   return %y.all_reduce : tensor<8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// A sum of norms is none, so it stays behind it.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<8xf32> {
  %r = spmd.all_reduce %x on [tp] op "Norm(2)" : tensor<16x8xf32> <>
  %y = aten.sum.dim_IntList(%r) {dim = [0]} : tensor<8xf32> <>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Norm(2)>}) -> tensor<8xf32> {
// |   %r = spmd.all_reduce %x on [tp] op "Norm(2)" : tensor<16x8xf32> <>
// |   %y = aten.sum.dim_IntList(%r) {dim = [0]} : tensor<8xf32> <>
// |   return %y : tensor<8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Equal steps of a placement are one; a nonlinear op does not pass sums that are sent as bytes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
  %a = spmd.convert %x : tensor<16x8xf32> <>
  %b = spmd.convert %x : tensor<16x8xf32> <>
  %g = aten.gelu(%a) : tensor<16x8xf32> <>
  %y = aten.mul.Tensor(%g, %b) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
// |   %a = spmd.convert %x : tensor<16x8xf32> <>
// |   %g = aten.gelu(%a) : tensor<16x8xf32> <>
// |   %y = aten.mul.Tensor(%g, %a) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
