// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// In the given order the accelerator waits 107 us before the second product.
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
// |                 %w2: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.mm(%x, %w1) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %1 = aten.relu(%0) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %g2 = spmd.wait %g2.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %g2) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   return %2 : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                          live
// |      0.0   113.8  fsdp     %g2.start all_gather_start
// |      0.0   399.1  compute  %0 aten.mm                  205.5 MB
// |    399.1   441.1  compute  %1 aten.relu                272.6 MB
// |    441.1   840.2  compute  %2 aten.mm                  272.6 MB
