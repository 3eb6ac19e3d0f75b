// RUN: spmd-opt %s --localize --schedule --verify-spmd --print-timeline
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
// |                 %b2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.local} {
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
// ! start us  end us  stream   op                           live
// !      0.0   106.7  fsdp     %ga1.start all_gather_start
// !      0.0   106.7  compute  waits for %ga1.start         117.4 MB
// !    106.7   116.2  compute  %ga2.start all_gather_start  230.7 MB
// !    116.2   381.5  fsdp     %ga2.start all_gather_start
// !    116.2   515.2  compute  %0 aten.mm                   297.8 MB
// !    515.2   581.3  compute  %ga2 wait                    352.3 MB
// !    581.3   980.4  compute  %1 aten.mm                   318.8 MB
// !    980.4  1379.4  compute  %2 aten.mm                   285.2 MB
// !   1379.4  1778.5  compute  %3 aten.mm                   251.7 MB
