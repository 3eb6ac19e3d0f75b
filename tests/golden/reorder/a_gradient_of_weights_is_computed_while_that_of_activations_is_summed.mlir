// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// In the given order the gradient of the weight, which nothing waits for, comes before that of the activation, which is summed over
// the ranks before the layer below can use it.
spmd.mesh @mesh <tp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<4096x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %dy: tensor<8192x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %xt = aten.t(%x) : tensor<4096x8192xbf16> <>
  %dw = aten.mm(%xt, %dy) : tensor<4096x16384xbf16> <tp: S(1)>
  %wt = aten.t(%w) : tensor<16384x4096xbf16> <tp: S(0)>
  %dx = aten.mm(%dy, %wt) : tensor<8192x4096xbf16> <tp: P(sum)>
  %dx.reduced = spmd.all_reduce %dx on [tp] op sum : tensor<8192x4096xbf16> <>
  %0 = aten.relu(%dx.reduced) : tensor<8192x4096xbf16> <>
  return %0, %dw : tensor<8192x4096xbf16>, tensor<4096x16384xbf16>
}

// | spmd.mesh @mesh <tp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<4096x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %dy: tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "scheduled"} {
// |   %wt = aten.t(%w) : tensor<2048x4096xbf16> <tp: S(0)>
// |   %dx = aten.mm(%dy, %wt) : tensor<8192x4096xbf16> <tp: P(sum)>
// |   %dx.start = spmd.all_reduce_start %dx on [tp] op sum : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %xt = aten.t(%x) : tensor<4096x8192xbf16> <>
// |   %dw = aten.mm(%xt, %dy) : tensor<4096x2048xbf16> <tp: S(1)>
// |   %dx.reduced = spmd.wait %dx.start : tensor<8192x4096xbf16> <>
// |   %0 = aten.relu(%dx.reduced) : tensor<8192x4096xbf16> <>
// |   return %0, %dw : tensor<8192x4096xbf16>, tensor<4096x2048xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                          live
// |      0.0   200.5  compute  %dx aten.mm                 184.5 MB
// |    200.5   401.1  compute  %dw aten.mm                 268.4 MB
// |    200.5   582.7  tp       %dx.start all_reduce_start
// |    401.1   582.7  compute  waits for %dx.start         268.4 MB
// |    582.7   624.8  compute  %0 aten.relu                268.4 MB
