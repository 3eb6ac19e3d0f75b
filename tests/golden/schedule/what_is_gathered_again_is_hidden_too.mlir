// RUN: spmd-opt %s --localize --schedule="memory=390MB" --verify-spmd | spmd report - --view timeline
// A rank holds most at the second op. So the weight of the first layer is not held there, and is gathered again for the backward part, which is
// hidden as any other gather is.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<4096x8192xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<4096x8192xbf16> <>
  %0 = aten.mm(%x, %g1) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %1 = aten.relu(%0) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8192x2048xbf16> <>
  %2 = aten.mm(%1, %g2) : tensor<65536x2048xbf16> <fsdp: S(0)>
  %w2t = aten.t(%g2) : tensor<2048x8192xbf16> <>
  %3 = aten.mm(%2, %w2t) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %w1t = aten.t(%g1) : tensor<8192x4096xbf16> <>
  %4 = aten.mm(%3, %w1t) : tensor<65536x4096xbf16> <fsdp: S(0)>
  return %4 : tensor<65536x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<512x8192xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<1024x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %g1.start = spmd.all_gather_start %w1 on [fsdp] dim 0 : !spmd.pending<tensor<4096x8192xbf16>> <>
// |   %g1 = spmd.wait %g1.start : tensor<4096x8192xbf16> <>
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 : !spmd.pending<tensor<8192x2048xbf16>> <>
// |   %0 = aten.mm(%x, %g1) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %1 = aten.relu(%0) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %g2 = spmd.wait %g2.start : tensor<8192x2048xbf16> <>
// |   %2 = aten.mm(%1, %g2) : tensor<8192x2048xbf16> <fsdp: S(0)>
// |   %w2t = aten.t(%g2) : tensor<2048x8192xbf16> <>
// |   %g1.start_1 = spmd.all_gather_start %w1 on [fsdp] dim 0 : !spmd.pending<tensor<4096x8192xbf16>> <>
// |   %3 = aten.mm(%2, %w2t) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %g1.again = spmd.wait %g1.start_1 : tensor<4096x8192xbf16> <>
// |   %w1t = aten.t(%g1.again) : tensor<8192x4096xbf16> <>
// |   %4 = aten.mm(%3, %w1t) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   return %4 : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                            live
// |      0.0   195.3  fsdp     %g1.start all_gather_start
// |      0.0   195.3  compute  waits for %g1.start           146.8 MB
// |    195.3   309.1  fsdp     %g2.start all_gather_start
// |    195.3   991.4  compute  %0 aten.mm                    314.6 MB
// |    991.4  1073.5  compute  %1 aten.relu                  381.7 MB
// |   1073.5  1472.6  compute  %2 aten.mm                    281 MB
// |   1472.6  1667.9  fsdp     %g1.start_1 all_gather_start
// |   1472.6  1871.6  compute  %3 aten.mm                    348.1 MB
// |   1871.6  2667.7  compute  %4 aten.mm                    348.1 MB
