// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// The gradient of a layer is reduced as soon as it is there, while that of the layer below is computed. Behind the last one is nothing
// to compute: its time is exposed.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %a: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %dy: tensor<65536x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) {
  %at = aten.t(%a) : tensor<4096x65536xbf16> <fsdp: S(1)>
  %dw2 = aten.mm(%at, %dy) : tensor<4096x4096xbf16> <fsdp: P(sum)>
  %wt = aten.t(%w) : tensor<4096x4096xbf16> <>
  %da = aten.mm(%dy, %wt) : tensor<65536x4096xbf16> <fsdp: S(0)>
  %xt = aten.t(%x) : tensor<4096x65536xbf16> <fsdp: S(1)>
  %dw1 = aten.mm(%xt, %da) : tensor<4096x4096xbf16> <fsdp: P(sum)>
  %dw1.reduced = spmd.reduce_scatter %dw1 on [fsdp] dim 0 op sum : tensor<4096x4096xbf16> <fsdp: S(0)>
  %dw2.reduced = spmd.reduce_scatter %dw2 on [fsdp] dim 0 op sum : tensor<4096x4096xbf16> <fsdp: S(0)>
  return %dw1.reduced, %dw2.reduced : tensor<4096x4096xbf16>, tensor<4096x4096xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %a: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %dy: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %at = aten.t(%a) : tensor<4096x8192xbf16> <fsdp: S(1)>
// |   %dw2 = aten.mm(%at, %dy) : tensor<4096x4096xbf16> <fsdp: P(sum)>
// |   %dw2.start = spmd.reduce_scatter_start %dw2 on [fsdp] dim 0 op sum : !spmd.pending<tensor<512x4096xbf16>> <fsdp: S(0)>
// |   %wt = aten.t(%w) : tensor<4096x4096xbf16> <>
// |   %da = aten.mm(%dy, %wt) : tensor<8192x4096xbf16> <fsdp: S(0)>
// |   %dw2.reduced = spmd.wait %dw2.start : tensor<512x4096xbf16> <fsdp: S(0)>
// |   %xt = aten.t(%x) : tensor<4096x8192xbf16> <fsdp: S(1)>
// |   %dw1 = aten.mm(%xt, %da) : tensor<4096x4096xbf16> <fsdp: P(sum)>
// |   %dw1.start = spmd.reduce_scatter_start %dw1 on [fsdp] dim 0 op sum : !spmd.pending<tensor<512x4096xbf16>> <fsdp: S(0)>
// |   %dw1.reduced = spmd.wait %dw1.start : tensor<512x4096xbf16> <fsdp: S(0)>
// |   return %dw1.reduced, %dw2.reduced : tensor<512x4096xbf16>, tensor<512x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                               live
// |      0.0   399.1  compute  %dw2 aten.mm                     268.4 MB
// |    399.1   512.8  fsdp     %dw2.start reduce_scatter_start
// |    399.1   798.1  compute  %da aten.mm                      339.7 MB
// |    798.1  1197.2  compute  %dw1 aten.mm                     339.7 MB
// |   1197.2  1310.9  fsdp     %dw1.start reduce_scatter_start
// |   1197.2  1310.9  compute  waits for %dw1.start             276.8 MB
