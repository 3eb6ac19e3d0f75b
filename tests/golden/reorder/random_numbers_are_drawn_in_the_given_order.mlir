// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd
// The gradient of the weight hides the sum, but the mask that it needs is drawn first, as on one device: other numbers would be
// drawn in another order.
spmd.mesh @mesh <tp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<16384x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %dy: tensor<8192x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %x.mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<8192x4096xbf16> <>
  %xt = aten.t(%x.mask) : tensor<4096x8192xbf16> <>
  %dw = aten.mm(%xt, %dy) : tensor<4096x16384xbf16> <tp: S(1)>
  %w.mask = aten.bernoulli.p(%w) {p = 0.5} : tensor<16384x4096xbf16> <>
  %w.shard = spmd.slice %w.mask on [tp] dim 0 : tensor<16384x4096xbf16> <tp: S(0)>
  %dx = aten.mm(%dy, %w.shard) : tensor<8192x4096xbf16> <tp: P(sum)>
  %dx.reduced = spmd.all_reduce %dx on [tp] op sum : tensor<8192x4096xbf16> <>
  %0 = aten.relu(%dx.reduced) : tensor<8192x4096xbf16> <>
  return %0, %dw : tensor<8192x4096xbf16>, tensor<4096x16384xbf16>
}

// | spmd.mesh @mesh <tp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<16384x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %dy: tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "scheduled"} {
// |   %x.mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<8192x4096xbf16> <>
// |   %w.mask = aten.bernoulli.p(%w) {p = 0.5} : tensor<16384x4096xbf16> <>
// |   %w.shard = spmd.slice %w.mask on [tp] dim 0 : tensor<2048x4096xbf16> <tp: S(0)>
// |   %dx = aten.mm(%dy, %w.shard) : tensor<8192x4096xbf16> <tp: P(sum)>
// |   %dx.start = spmd.all_reduce_start %dx on [tp] op sum : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %xt = aten.t(%x.mask) : tensor<4096x8192xbf16> <>
// |   %dw = aten.mm(%xt, %dy) : tensor<4096x2048xbf16> <tp: S(1)>
// |   %dx.reduced = spmd.wait %dx.start : tensor<8192x4096xbf16> <>
// |   %0 = aten.relu(%dx.reduced) : tensor<8192x4096xbf16> <>
// |   return %0, %dw : tensor<8192x4096xbf16>, tensor<4096x2048xbf16>
// | }
