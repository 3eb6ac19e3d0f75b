// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w2: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %1 = aten.relu(%0) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %g2) : tensor<65536x4096xbf16> <fsdp: S(0)>
  return %2 : tensor<65536x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.local} {
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.mm(%x, %w1) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %1 = aten.relu(%0) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %g2 = spmd.wait %g2.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %g2) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   return %2 : tensor<8192x4096xbf16>
// | }
