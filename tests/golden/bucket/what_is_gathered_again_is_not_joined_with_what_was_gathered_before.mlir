// RUN: spmd-opt %s --localize --bucket="memory=1MB" --verify-spmd
// Two weights are gathered, and again for the backward part: the first gathers are one message, and so are the last ones.
spmd.mesh @mesh <fsdp = 4>

func.func @step(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> tensor<8x8xf32> {
  %w1.whole = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8x8xf32> <>
  %y = aten.mm(%x, %w1.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %w2.whole = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8x8xf32> <>
  %z = aten.mm(%y, %w2.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %w2.again = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<8x8xf32> <> attributes {spmd.recomputes = "w2.whole"}
  %dy = aten.mm(%z, %w2.again) : tensor<8x8xf32> <fsdp: S(0)>
  %w1.again = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<8x8xf32> <> attributes {spmd.recomputes = "w1.whole"}
  %dx = aten.mm(%dy, %w1.again) : tensor<8x8xf32> <fsdp: S(0)>
  return %dx : tensor<8x8xf32>
}

// | spmd.mesh @mesh <fsdp = 4>
// |
// | func.func @step(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> tensor<2x8xf32> attributes {spmd.stage = "scheduled"} {
// |   %w1.whole, %w2.whole = spmd.all_gather %w1, %w2 on [fsdp] dim 0 : tensor<8x8xf32> <>, tensor<8x8xf32> <>
// |   %y = aten.mm(%x, %w1.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %z = aten.mm(%y, %w2.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %w1.again, %w2.again = spmd.all_gather %w1, %w2 on [fsdp] dim 0 : tensor<8x8xf32> <>, tensor<8x8xf32> <>
// |   %dy = aten.mm(%z, %w2.again) : tensor<2x8xf32> <fsdp: S(0)>
// |   %dx = aten.mm(%dy, %w1.again) : tensor<2x8xf32> <fsdp: S(0)>
// |   return %dx : tensor<2x8xf32>
// | }
