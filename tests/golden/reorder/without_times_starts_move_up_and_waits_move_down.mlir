// RUN: spmd-opt %s --localize --split-async --reorder="mode=simple memory=auto" --verify-spmd
// One gather is under way while the result of the one before is used, and no third one is started.
spmd.mesh @mesh <fsdp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w3: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %0 = aten.relu(%x) : tensor<8x4xf32> <fsdp: S(0)>
  %g1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<4x4xf32> <>
  %1 = aten.mm(%0, %g1) : tensor<8x4xf32> <fsdp: S(0)>
  %g2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<4x4xf32> <>
  %2 = aten.mm(%1, %g2) : tensor<8x4xf32> <fsdp: S(0)>
  %g3 = spmd.all_gather %w3 on [fsdp] dim 0 : tensor<4x4xf32> <>
  %3 = aten.mm(%2, %g3) : tensor<8x4xf32> <fsdp: S(0)>
  return %3 : tensor<8x4xf32>
}

// | spmd.mesh @mesh <fsdp = 2>
// |
// | func.func @main(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w3: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %g1.start = spmd.all_gather_start %w1 on [fsdp] dim 0 : !spmd.pending<tensor<4x4xf32>> <>
// |   %0 = aten.relu(%x) : tensor<4x4xf32> <fsdp: S(0)>
// |   %g2.start = spmd.all_gather_start %w2 on [fsdp] dim 0 : !spmd.pending<tensor<4x4xf32>> <>
// |   %g1 = spmd.wait %g1.start : tensor<4x4xf32> <>
// |   %1 = aten.mm(%0, %g1) : tensor<4x4xf32> <fsdp: S(0)>
// |   %g3.start = spmd.all_gather_start %w3 on [fsdp] dim 0 : !spmd.pending<tensor<4x4xf32>> <>
// |   %g2 = spmd.wait %g2.start : tensor<4x4xf32> <>
// |   %2 = aten.mm(%1, %g2) : tensor<4x4xf32> <fsdp: S(0)>
// |   %g3 = spmd.wait %g3.start : tensor<4x4xf32> <>
// |   %3 = aten.mm(%2, %g3) : tensor<4x4xf32> <fsdp: S(0)>
// |   return %3 : tensor<4x4xf32>
// | }
