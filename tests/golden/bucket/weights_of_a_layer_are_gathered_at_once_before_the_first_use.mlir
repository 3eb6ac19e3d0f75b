// RUN: spmd-opt %s --localize --bucket="memory=auto" --verify-spmd | spmd report - --view timeline
// The second weight is needed later and gathered along another dimension; its view comes along.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w0: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w1: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %h = aten.mm(%x, %w0) : tensor<16384x1024xbf16> <fsdp: S(0)>
  %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<1024x4096xbf16> <>
  %up = aten.mm(%h, %g1) : tensor<16384x4096xbf16> <fsdp: S(0)>
  %t2 = aten.t(%w2) : tensor<4096x1024xbf16> <fsdp: S(1)>
  %g2 = spmd.all_gather %t2 on [fsdp] dim 1 : tensor<4096x1024xbf16> <>
  %down = aten.mm(%up, %g2) : tensor<16384x1024xbf16> <fsdp: S(0)>
  return %down : tensor<16384x1024xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w0: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w1: tensor<128x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<128x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %h = aten.mm(%x, %w0) : tensor<2048x1024xbf16> <fsdp: S(0)>
// |   %t2 = aten.t(%w2) : tensor<4096x128xbf16> <fsdp: S(1)>
// |   %g1, %g2 = spmd.all_gather %w1, %t2 on [fsdp] dim [0, 1] : tensor<1024x4096xbf16> <>, tensor<4096x1024xbf16> <>
// |   %up = aten.mm(%h, %g1) : tensor<2048x4096xbf16> <fsdp: S(0)>
// |   %down = aten.mm(%up, %g2) : tensor<2048x1024xbf16> <fsdp: S(0)>
// |   return %down : tensor<2048x1024xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op              live
// |      0.0     8.2  compute  %h aten.mm      12.58 MB
// |      8.2    25.5  compute  %g1 all_gather  46.14 MB
// |     25.5    97.1  fsdp     %g1 all_gather
// |     25.5    97.1  compute  waits for %g1   46.14 MB
// |     97.1   123.9  compute  %up aten.mm     46.14 MB
// |    123.9   150.7  compute  %down aten.mm   37.75 MB
