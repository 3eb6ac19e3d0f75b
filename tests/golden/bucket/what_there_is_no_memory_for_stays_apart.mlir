// RUN: spmd-opt %s --localize --bucket --verify-spmd | spmd report - --view timeline
// The rank holds most while %wide is there, and without a limit bucket lets it hold no more than before: the second weight would be there
// too if it were gathered with the first one. With memory=auto, which is the memory of the machine, they are one.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
  %0 = aten.mm(%x, %g1) : tensor<16384x1024xbf16> <fsdp: S(0)>
  %wide = aten.cat([%0, %0]) {dim = 1} : tensor<16384x2048xbf16> <fsdp: S(0)>
  %1 = aten.amax(%wide) {dim = [1], keepdim = true} : tensor<16384x1xbf16> <fsdp: S(0)>
  %2 = aten.sub.Tensor(%x, %1) : tensor<16384x1024xbf16> <fsdp: S(0)>
  %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
  %3 = aten.mm(%2, %g2) : tensor<16384x1024xbf16> <fsdp: S(0)>
  return %3 : tensor<16384x1024xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<128x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<128x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
// |   %0 = aten.mm(%x, %g1) : tensor<2048x1024xbf16> <fsdp: S(0)>
// |   %wide = aten.cat([%0, %0]) {dim = 1} : tensor<2048x2048xbf16> <fsdp: S(0)>
// |   %1 = aten.amax(%wide) {dim = [1], keepdim = true} : tensor<2048x1xbf16> <fsdp: S(0)>
// |   %2 = aten.sub.Tensor(%x, %1) : tensor<2048x1024xbf16> <fsdp: S(0)>
// |   %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
// |   %3 = aten.mm(%2, %g2) : tensor<2048x1024xbf16> <fsdp: S(0)>
// |   return %3 : tensor<2048x1024xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                  live
// |      0.0    23.8  fsdp     %g1 all_gather
// |      0.0    23.8  compute  waits for %g1       6.816 MB
// |     23.8    32.0  compute  %0 aten.mm          11.01 MB
// |     32.0    37.8  compute  %wide aten.cat      17.3 MB
// |     37.8    42.3  compute  %1 aten.amax        13.11 MB
// |     42.3    46.8  compute  %2 aten.sub.Tensor  8.917 MB
// |     46.8    70.6  fsdp     %g2 all_gather
// |     46.8    70.6  compute  waits for %g2       11.01 MB
// |     70.6    78.8  compute  %3 aten.mm          15.2 MB
