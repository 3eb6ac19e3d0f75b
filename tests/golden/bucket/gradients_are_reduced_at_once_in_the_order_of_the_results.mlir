// RUN: spmd-opt %s --localize --bucket="memory=auto" --verify-spmd | spmd report - --view timeline
// The backward pass makes the gradient of the last weight first; which order members have decides how sums are rounded.
spmd.mesh @mesh <fsdp = 8>

func.func @main(%x: tensor<4096x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %y: tensor<4096x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, %dy: tensor<4096x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<256x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, tensor<256x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(1)>}) {
  %yt = aten.t(%y) : tensor<256x4096xbf16> <fsdp: S(1)>
  %dw2 = aten.mm(%yt, %dy) : tensor<256x256xbf16> <fsdp: P(sum)>
  %dw2.reduced = spmd.reduce_scatter %dw2 on [fsdp] dim 1 op sum : tensor<256x256xbf16> <fsdp: S(1)>
  %xt = aten.t(%x) : tensor<256x4096xbf16> <fsdp: S(1)>
  %dw1 = aten.mm(%xt, %dy) : tensor<256x256xbf16> <fsdp: P(sum)>
  %dw1.reduced = spmd.reduce_scatter %dw1 on [fsdp] dim 0 op sum : tensor<256x256xbf16> <fsdp: S(0)>
  return %dw1.reduced, %dw2.reduced : tensor<256x256xbf16>, tensor<256x256xbf16>
}

// | spmd.mesh @mesh <fsdp = 8>
// |
// | func.func @main(%x: tensor<512x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %y: tensor<512x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |                 %dy: tensor<512x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> (tensor<32x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}, tensor<256x32xbf16> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(1)>}) attributes {spmd.stage = "scheduled"} {
// |   %yt = aten.t(%y) : tensor<256x512xbf16> <fsdp: S(1)>
// |   %dw2 = aten.mm(%yt, %dy) : tensor<256x256xbf16> <fsdp: P(sum)>
// |   %xt = aten.t(%x) : tensor<256x512xbf16> <fsdp: S(1)>
// |   %dw1 = aten.mm(%xt, %dy) : tensor<256x256xbf16> <fsdp: P(sum)>
// |   %dw1.reduced, %dw2.reduced = spmd.reduce_scatter %dw1, %dw2 on [fsdp] dim [0, 1] op sum : tensor<32x256xbf16> <fsdp: S(0)>, tensor<256x32xbf16> <fsdp: S(1)>
// |   return %dw1.reduced, %dw2.reduced : tensor<32x256xbf16>, tensor<256x32xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                           live
// |      0.0     2.2  compute  %dw2 aten.mm                 917.5 kB
// |      2.2     4.4  compute  %dw1 aten.mm                 1.049 MB
// |      4.4     8.6  compute  %dw1.reduced reduce_scatter  1.311 MB
// |      8.6    21.0  fsdp     %dw1.reduced reduce_scatter
// |      8.6    21.0  compute  waits for %dw1.reduced       1.311 MB
