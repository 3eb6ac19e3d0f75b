// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange"
spmd.mesh @mesh <dp = 2, tp = 4>

// Gathered on one dimension, sliced on another: an all-to-all.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <a = 2, b = 4, c = 2>

// The axes outside are gathered, those inside sliced.
func.func @main(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) -> tensor<1024x1024xf32> attributes {spmd.decided_by = "propagate{topology=flat}"} {
  %g = spmd.all_gather %x on [a, b] dim 0 : tensor<1024x1024xf32> <>
  %y = spmd.slice %g on [b, c] dim 1 : tensor<1024x1024xf32> <b: S(1), c: S(1)>
  return %y : tensor<1024x1024xf32>
}

// | spmd.mesh @mesh <a = 2, b = 4, c = 2>
// |
// | func.func @main(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) -> tensor<1024x1024xf32> attributes {spmd.decided_by = "propagate{topology=flat}"} {
// |   %x.all_to_all = spmd.all_to_all %x on [b] from 0 to 1 : tensor<1024x1024xf32> <a: S(0), b: S(1)>
// |   %x.all_gather = spmd.all_gather %x.all_to_all on [a] dim 0 : tensor<1024x1024xf32> <b: S(1)>
// |   %y = spmd.slice %x.all_gather on [c] dim 1 : tensor<1024x1024xf32> <b: S(1), c: S(1)>
// |   return %y : tensor<1024x1024xf32>
// | }

// -----
// On h100x8, two collectives of few bytes take longer than one.
spmd.mesh @mesh <a = 2, b = 4, c = 2>

func.func @main(%x: tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) -> tensor<16x16xf32> {
  %g = spmd.all_gather %x on [a, b] dim 0 : tensor<16x16xf32> <>
  %y = spmd.slice %g on [b, c] dim 1 : tensor<16x16xf32> <b: S(1), c: S(1)>
  return %y : tensor<16x16xf32>
}

// | spmd.mesh @mesh <a = 2, b = 4, c = 2>
// |
// | func.func @main(%x: tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) -> tensor<16x16xf32> {
// |   %g = spmd.all_gather %x on [a, b] dim 0 : tensor<16x16xf32> <>
// |   %y = spmd.slice %g on [b, c] dim 1 : tensor<16x16xf32> <b: S(1), c: S(1)>
// |   return %y : tensor<16x16xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not on one and the same dimension, nor if the gathered value is used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>) {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %z = spmd.slice %g on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  %u = aten.relu(%g) : tensor<16x8xf32> <>
  return %y, %z, %u : tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %y = spmd.slice %g on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   %z = spmd.slice %g on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
// |   %u = aten.relu(%g) : tensor<16x8xf32> <>
// |   return %y, %z, %u : tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>
// | }
