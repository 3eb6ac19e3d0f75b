// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=slice-of-all-reduce"
spmd.mesh @mesh <dp = 2, tp = 4>

// The cut half of an all-reduce is a reduce-scatter.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = spmd.slice %r on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>

// Axes that are not cut are reduced after, on less; axes cut beside are cut at once.
func.func @main(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(max), b: P(max)>}) -> tensor<1024x1024xf32> attributes {spmd.decided_by = "propagate{topology=flat}"} {
  %r = spmd.all_reduce %x on [a, b] op max : tensor<1024x1024xf32> <>
  %y = spmd.slice %r on [c, a, d] dim 1 : tensor<1024x1024xf32> <c: S(1), a: S(1), d: S(1)>
  return %y : tensor<1024x1024xf32>
}

// | spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>
// |
// | func.func @main(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(max), b: P(max)>}) -> tensor<1024x1024xf32> attributes {spmd.decided_by = "propagate{topology=flat}"} {
// |   %x.slice = spmd.slice %x on [c] dim 1 : tensor<1024x1024xf32> <c: S(1), a: P(max), b: P(max)>
// |   %x.reduce_scatter = spmd.reduce_scatter %x.slice on [a] dim 1 op max : tensor<1024x1024xf32> <c: S(1), a: S(1), b: P(max)>
// |   %x.all_reduce = spmd.all_reduce %x.reduce_scatter on [b] op max : tensor<1024x1024xf32> <c: S(1), a: S(1)>
// |   %y = spmd.slice %x.all_reduce on [d] dim 1 : tensor<1024x1024xf32> <c: S(1), a: S(1), d: S(1)>
// |   return %y : tensor<1024x1024xf32>
// | }

// -----
// On h100x8, two collectives of few bytes take longer than one.
spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(max), b: P(max)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [a, b] op max : tensor<16x8xf32> <>
  %y = spmd.slice %r on [c, a, d] dim 1 : tensor<16x8xf32> <c: S(1), a: S(1), d: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(max), b: P(max)>}) -> tensor<16x8xf32> {
// |   %r = spmd.all_reduce %x on [a, b] op max : tensor<16x8xf32> <>
// |   %y = spmd.slice %r on [c, a, d] dim 1 : tensor<16x8xf32> <c: S(1), a: S(1), d: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the gathered value is used too: that would be more bytes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = spmd.slice %r on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y, %r : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = spmd.slice %r on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y, %r : tensor<16x8xf32>, tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the axes cut are not among those reduced.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = spmd.slice %r on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = spmd.slice %r on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
