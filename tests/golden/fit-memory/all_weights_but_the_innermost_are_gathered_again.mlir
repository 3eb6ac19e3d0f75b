// RUN: spmd-opt %s --localize --fit-memory="regather=true" --verify-spmd
spmd.mesh @mesh <fsdp = 4>

// The memory limit allows to hold all weights. %c.whole is used with no other weight in between, so it is held.
func.func @step(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
                %a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"},
                %b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"},
                %c: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"}) -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %a.whole = spmd.all_gather %a on [fsdp] dim 0 : tensor<8x8xf32> <>
  %1 = aten.mm(%x, %a.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %b.whole = spmd.all_gather %b on [fsdp] dim 0 : tensor<8x8xf32> <>
  %2 = aten.mm(%1, %b.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %c.whole = spmd.all_gather %c on [fsdp] dim 0 : tensor<8x8xf32> <>
  %3 = aten.mm(%2, %c.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %4 = aten.sin(%3) : tensor<8x8xf32> <fsdp: S(0)>
  %5 = aten.mm(%4, %c.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %6 = aten.mm(%5, %b.whole) : tensor<8x8xf32> <fsdp: S(0)>
  %7 = aten.mm(%6, %a.whole) : tensor<8x8xf32> <fsdp: S(0)>
  return %7 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <fsdp = 4>
// |
// | func.func @step(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %a: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"},
// |                 %b: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"},
// |                 %c: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>, spmd.kind = "parameter"}) -> (tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %a.whole = spmd.all_gather %a on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %1 = aten.mm(%x, %a.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %b.whole = spmd.all_gather %b on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %2 = aten.mm(%1, %b.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %c.whole = spmd.all_gather %c on [fsdp] dim 0 : tensor<8x8xf32> <>
// |   %3 = aten.mm(%2, %c.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %4 = aten.sin(%3) : tensor<2x8xf32> <fsdp: S(0)>
// |   %5 = aten.mm(%4, %c.whole) : tensor<2x8xf32> <fsdp: S(0)>
// |   %b.again = spmd.all_gather %b on [fsdp] dim 0 : tensor<8x8xf32> <> attributes {spmd.recomputes = "b.whole"}
// |   %6 = aten.mm(%5, %b.again) : tensor<2x8xf32> <fsdp: S(0)>
// |   %a.again = spmd.all_gather %a on [fsdp] dim 0 : tensor<8x8xf32> <> attributes {spmd.recomputes = "a.whole"}
// |   %7 = aten.mm(%6, %a.again) : tensor<2x8xf32> <fsdp: S(0)>
// |   return %7 : tensor<2x8xf32>
// | }
