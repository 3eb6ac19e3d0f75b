// RUN: spmd-opt %s --localize --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// Two streams over the same ranks are two communicators: the second gather begins when the first one has been waited for. On one stream
// both would be started before the first product.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %0 = aten.relu(%x) : tensor<8192x4096xbf16> <fsdp: S(0)>
  %g1.start = spmd.all_gather_start %w1 on [fsdp] dim 0 stream one : !spmd.pending<tensor<4096x4096xbf16>> <>
  %g1 = spmd.wait %g1.start : tensor<4096x4096xbf16> <>
  %1 = aten.mm(%0, %g1) : tensor<8192x4096xbf16> <fsdp: S(0)>
  %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 stream other : !spmd.pending<tensor<4096x4096xbf16>> <>
  %g2 = spmd.wait %g2.start : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %g2) : tensor<8192x4096xbf16> <fsdp: S(0)>
  return %2 : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %g1.start = spmd.all_gather_start %w1 on [fsdp] dim 0 stream one : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.relu(%x) : tensor<1024x4096xbf16> <fsdp: S(0)>
// |   %g1 = spmd.wait %g1.start : tensor<4096x4096xbf16> <>
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 stream other : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %1 = aten.mm(%0, %g1) : tensor<1024x4096xbf16> <fsdp: S(0)>
// |   %g2 = spmd.wait %g2.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %g2) : tensor<1024x4096xbf16> <fsdp: S(0)>
// |   return %2 : tensor<1024x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                          live
// |      0.0     7.0  compute  %0 aten.relu                58.72 MB
// |      0.0   113.8  one      %g1.start all_gather_start
// |      7.0   113.8  compute  waits for %g1.start         58.72 MB
// |    113.8   165.4  compute  %1 aten.mm                  100.7 MB
// |    113.8   227.5  other    %g2.start all_gather_start
// |    165.4   227.5  compute  waits for %g2.start         58.72 MB
// |    227.5   279.1  compute  %2 aten.mm                  67.11 MB
