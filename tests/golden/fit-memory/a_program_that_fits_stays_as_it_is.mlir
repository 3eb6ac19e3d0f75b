// RUN: spmd-opt %s --localize --fit-memory --verify-spmd
spmd.mesh @mesh <fsdp = 4>

func.func @step(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
                %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>})
    -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %w.whole = spmd.all_gather %w on [fsdp] dim 0 : tensor<8x8xf32> <>
  %y = aten.mm(%x, %w.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %w.t = aten.t(%w.whole) : tensor<8x8xf32> <>
  %dx = aten.mm(%y, %w.t) : tensor<8x8xf32> <fsdp: S(0)>
  return %dx : tensor<8x8xf32>
}

// | spmd.mesh @mesh <fsdp = 4>
// |
// | func.func @step(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %w.whole = spmd.all_gather %w on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %y = aten.mm(%x, %w.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %w.t = aten.t(%w.whole) : tensor<8x8xf32> <>
// |   %dx = aten.mm(%y, %w.t) : tensor<2x8xf32> <fsdp: S(0)>
// |   return %dx : tensor<2x8xf32>
// | }
