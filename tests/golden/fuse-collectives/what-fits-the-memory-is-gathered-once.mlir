// RUN: spmd-opt %s --fuse-collectives | spmd report - --view memory
// Without a limit the machine has room for the weight until its second use.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %g = spmd.all_gather %w on [tp] dim 0 : tensor<512x512xf32> <>
  %0 = aten.mm(%x, %g) : tensor<64x512xf32> <>
  %1 = aten.tanh(%0) : tensor<64x512xf32> <>
  %v = aten.tanh(%w) : tensor<512x512xf32> <tp: S(0)>
  %h = spmd.all_gather %v on [tp] dim 0 : tensor<512x512xf32> <>
  %2 = aten.mm(%1, %h) : tensor<64x512xf32> <>
  %g2 = spmd.all_gather %w on [tp] dim 0 : tensor<512x512xf32> <>
  %3 = aten.mm(%2, %g2) : tensor<64x512xf32> <>
  return %3 : tensor<64x512xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %w: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
// |   %g = spmd.all_gather %w on [tp] dim 0 : tensor<512x512xf32> <>
// |   %0 = aten.mm(%x, %g) : tensor<64x512xf32> <>
// |   %1 = aten.tanh(%0) : tensor<64x512xf32> <>
// |   %v = aten.tanh(%w) : tensor<512x512xf32> <tp: S(0)>
// |   %h = spmd.all_gather %v on [tp] dim 0 : tensor<512x512xf32> <>
// |   %2 = aten.mm(%1, %h) : tensor<64x512xf32> <>
// |   %3 = aten.mm(%2, %g) : tensor<64x512xf32> <>
// |   return %3 : tensor<64x512xf32>
// | }
// $ spmd report - --view memory
// | peak of live memory of a rank 2.884 MB, at %h
// |   inputs                 393.2 kB
// |   activations             2.49 MB
// | largest
// |   %g   1.049 MB  activations
// |   %h   1.049 MB  activations
// |   w    262.1 kB  inputs
// |   %v   262.1 kB  activations
// |   x    131.1 kB  inputs
// |   %1   131.1 kB  activations
