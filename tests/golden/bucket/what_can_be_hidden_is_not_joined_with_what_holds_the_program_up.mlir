// RUN: spmd-opt %s --localize --bucket="memory=auto" --verify-spmd | spmd report - --view timeline
// The first layer waits for its weight and its bias, which are small. Those of the second layer can be hidden, and would make it wait longer
// if they came along.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<131072x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %b1: tensor<1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w1: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %b2: tensor<1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w2: tensor<1024x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<131072x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %gb1 = spmd.all_gather %b1 on [fsdp] dim 0 : tensor<1024xbf16> <>
  %gw1 = spmd.all_gather %w1 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
  %0 = aten.addmm(%gb1, %x, %gw1) : tensor<131072x1024xbf16> <fsdp: S(0)>
  %gb2 = spmd.all_gather %b2 on [fsdp] dim 0 : tensor<1024xbf16> <>
  %gw2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
  %1 = aten.addmm(%gb2, %0, %gw2) : tensor<131072x1024xbf16> <fsdp: S(0)>
  return %1 : tensor<131072x1024xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %b1: tensor<128xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w1: tensor<128x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %b2: tensor<128xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w2: tensor<128x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<16384x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %gb1, %gw1 = spmd.all_gather %b1, %w1 on [fsdp] dim 0 : tensor<1024xbf16> <>, tensor<1024x1024xbf16> <>
// |   %0 = aten.addmm(%gb1, %x, %gw1) : tensor<16384x1024xbf16> <fsdp: S(0)>
// |   %gb2 = spmd.all_gather %b2 on [fsdp] dim 0 : tensor<1024xbf16> <>
// |   %gw2 = spmd.all_gather %w2 on [fsdp] dim 0 : tensor<1024x1024xbf16> <>
// |   %1 = aten.addmm(%gb2, %0, %gw2) : tensor<16384x1024xbf16> <fsdp: S(0)>
// |   return %1 : tensor<16384x1024xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op               live
// |      0.0     7.4  compute  %gb1 all_gather  38.28 MB
// |      7.4    31.2  fsdp     %gb1 all_gather
// |      7.4    31.2  compute  waits for %gb1   38.28 MB
// |     31.2    82.9  compute  %0 aten.addmm    69.73 MB
// |     82.9    93.7  fsdp     %gb2 all_gather
// |     82.9    93.7  compute  waits for %gb2   67.64 MB
// |     93.7   117.5  fsdp     %gw2 all_gather
// |     93.7   117.5  compute  waits for %gw2   69.73 MB
// |    117.5   169.1  compute  %1 aten.addmm    103.3 MB
