// RUN: spmd-opt %s --localize --reorder="memory=1TB" --verify-spmd
// A gather that repeats another one leads to a transfer, so it comes early, but not before what it repeats.
spmd.mesh @mesh <dp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %v: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
  -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %w = spmd.all_gather %v on [dp] dim 0 : tensor<4096x4096xbf16> <>
  %b = aten.mm(%x, %w) : tensor<8192x4096xbf16> <dp: S(0)>
  %f = aten.mm(%b, %w) : tensor<8192x4096xbf16> <dp: S(0)>
  %w.again = spmd.all_gather %v on [dp] dim 0 : tensor<4096x4096xbf16> <> attributes {spmd.recomputes = "w"}
  %d = aten.mm(%x, %w.again) : tensor<8192x4096xbf16> <dp: S(0)>
  %s = spmd.all_gather_start %d on [dp] dim 0 : !spmd.pending<tensor<8192x4096xbf16>> <>
  %g = spmd.wait %s : tensor<8192x4096xbf16> <>
  %h = aten.relu(%g) : tensor<8192x4096xbf16> <>
  return %f, %h : tensor<8192x4096xbf16>, tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <dp = 8>
// |
// | func.func @main(%x: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %v: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "scheduled"} {
// |   %w = spmd.all_gather %v on [dp] dim 0 : tensor<4096x4096xbf16> <>
// |   %w.again = spmd.all_gather %v on [dp] dim 0 : tensor<4096x4096xbf16> <> attributes {spmd.recomputes = "w"}
// |   %d = aten.mm(%x, %w.again) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %s = spmd.all_gather_start %d on [dp] dim 0 : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %b = aten.mm(%x, %w) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %f = aten.mm(%b, %w) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %g = spmd.wait %s : tensor<8192x4096xbf16> <>
// |   %h = aten.relu(%g) : tensor<8192x4096xbf16> <>
// |   return %f, %h : tensor<1024x4096xbf16>, tensor<8192x4096xbf16>
// | }
