// RUN: spmd-opt %s --localize --schedule="memory=390MB" --verify-spmd
// The transpose of a weight that is gathered again repeats the one before, also where each gather is a start and a wait.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %b1: tensor<8192xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %c1 = spmd.all_gather %b1 on [fsdp] dim 0 : tensor<8192xbf16> <>
  %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8192x4096xbf16> <>
  %t1 = aten.t(%g1) : tensor<4096x8192xbf16> <>
  %0 = aten.addmm(%c1, %x, %t1) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %1 = aten.relu(%0) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8192x2048xbf16> <>
  %2 = aten.mm(%1, %g2) : tensor<65536x2048xbf16> <fsdp: S(0)>
  %w2t = aten.t(%g2) : tensor<2048x8192xbf16> <>
  %3 = aten.mm(%2, %w2t) : tensor<65536x8192xbf16> <fsdp: S(0)>
  %w1t = aten.t(%t1) : tensor<8192x4096xbf16> <>
  %4 = aten.mm(%3, %w1t) : tensor<65536x4096xbf16> <fsdp: S(0)>
  return %4 : tensor<65536x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %b1: tensor<1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<1024x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %c1.start = spmd.all_gather_start %b1 on [fsdp] dim 0 : !spmd.pending<tensor<8192xbf16>> <>
// |   %g1.start = spmd.all_gather_start %w1 on [fsdp] dim 0 : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %c1 = spmd.wait %c1.start : tensor<8192xbf16> <>
// |   %g1 = spmd.wait %g1.start : tensor<8192x4096xbf16> <>
// |   %t1 = aten.t(%g1) : tensor<4096x8192xbf16> <>
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 : !spmd.pending<tensor<8192x2048xbf16>> <>
// |   %0 = aten.addmm(%c1, %x, %t1) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %1 = aten.relu(%0) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %g2 = spmd.wait %g2.start : tensor<8192x2048xbf16> <>
// |   %2 = aten.mm(%1, %g2) : tensor<8192x2048xbf16> <fsdp: S(0)>
// |   %w2t = aten.t(%g2) : tensor<2048x8192xbf16> <>
// |   %g1.start_1 = spmd.all_gather_start %w1 on [fsdp] dim 0 : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %3 = aten.mm(%2, %w2t) : tensor<8192x8192xbf16> <fsdp: S(0)>
// |   %g1.again = spmd.wait %g1.start_1 : tensor<8192x4096xbf16> <>
// |   %t1.again = aten.t(%g1.again) : tensor<4096x8192xbf16> <> attributes {spmd.recomputes = "t1"}
// |   %w1t = aten.t(%t1.again) : tensor<8192x4096xbf16> <>
// |   %4 = aten.mm(%3, %w1t) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   return %4 : tensor<8192x4096xbf16>
// | }
