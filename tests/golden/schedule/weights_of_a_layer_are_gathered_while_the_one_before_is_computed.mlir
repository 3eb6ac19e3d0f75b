// RUN: spmd-opt %s --localize --schedule --verify-spmd | spmd report - --view timeline
// In the given order the accelerator waits four times, 427 us in all; for the first weight it has to.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %a1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %a2: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %b1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %b2: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %ga1 = spmd.all_gather %a1 on [fsdp] dim 0 : tensor<4096x4096xbf16> <>
  %0 = aten.mm(%x, %ga1) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %ga2 = spmd.all_gather %a2 on [fsdp] dim 0 : tensor<4096x4096xbf16> <>
  %1 = aten.mm(%0, %ga2) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %gb1 = spmd.all_gather %b1 on [fsdp] dim 0 : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %gb1) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %gb2 = spmd.all_gather %b2 on [fsdp] dim 0 : tensor<4096x4096xbf16> <>
  %3 = aten.mm(%2, %gb2) : tensor<65536x4096xbf16> <fsdp: S(0)>
  return %3 : tensor<65536x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %a1: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %a2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %b1: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %b2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %ga1.start = spmd.all_gather_start %a1 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %ga1 = spmd.wait %ga1.start : tensor<4096x4096xbf16> <>
// |   %ga2.start = spmd.all_gather_start %a2 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.mm(%x, %ga1) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %ga2 = spmd.wait %ga2.start : tensor<4096x4096xbf16> <>
// |   %gb1.start = spmd.all_gather_start %b1 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %1 = aten.mm(%0, %ga2) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %gb1 = spmd.wait %gb1.start : tensor<4096x4096xbf16> <>
// |   %gb2.start = spmd.all_gather_start %b2 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %2 = aten.mm(%1, %gb1) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %gb2 = spmd.wait %gb2.start : tensor<4096x4096xbf16> <>
// |   %3 = aten.mm(%2, %gb2) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   return %3 : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                           live
// |      0.0   113.8  fsdp     %ga1.start all_gather_start
// |      0.0   113.8  compute  waits for %ga1.start         117.4 MB
// |    113.8   227.5  fsdp     %ga2.start all_gather_start
// |    113.8   512.8  compute  %0 aten.mm                   218.1 MB
// |    512.8   626.6  fsdp     %gb1.start all_gather_start
// |    512.8   911.9  compute  %1 aten.mm                   285.2 MB
// |    911.9  1025.6  fsdp     %gb2.start all_gather_start
// |    911.9  1310.9  compute  %2 aten.mm                   285.2 MB
// |   1310.9  1710.0  compute  %3 aten.mm                   251.7 MB
