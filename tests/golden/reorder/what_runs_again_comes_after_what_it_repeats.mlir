// RUN: spmd-opt %s --localize --split-async --reorder="memory=1TB" --verify-spmd
// %d leads to the gather that %h waits for, so it comes before all else; but %a.again is named by %a.
spmd.mesh @mesh <dp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>})
  -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %a = aten.relu(%x) : tensor<8192x4096xbf16> <dp: S(0)>
  %b = aten.mm(%a, %w) : tensor<8192x4096xbf16> <dp: S(0)>
  %f = aten.mm(%b, %w) : tensor<8192x4096xbf16> <dp: S(0)>
  %a.again = aten.relu(%x) : tensor<8192x4096xbf16> <dp: S(0)> attributes {spmd.recomputes = "a"}
  %d = aten.mm(%a.again, %w) : tensor<8192x4096xbf16> <dp: S(0)>
  %g = spmd.all_gather %d on [dp] dim 0 : tensor<8192x4096xbf16> <>
  %h = aten.relu(%g) : tensor<8192x4096xbf16> <>
  return %f, %h : tensor<8192x4096xbf16>, tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <dp = 8>
// |
// | func.func @main(%x: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "scheduled"} {
// |   %a = aten.relu(%x) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %a.again = aten.relu(%x) : tensor<1024x4096xbf16> <dp: S(0)> attributes {spmd.recomputes = "a"}
// |   %d = aten.mm(%a.again, %w) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %g.start = spmd.all_gather_start %d on [dp] dim 0 : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %b = aten.mm(%a, %w) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %f = aten.mm(%b, %w) : tensor<1024x4096xbf16> <dp: S(0)>
// |   %g = spmd.wait %g.start : tensor<8192x4096xbf16> <>
// |   %h = aten.relu(%g) : tensor<8192x4096xbf16> <>
// |   return %f, %h : tensor<1024x4096xbf16>, tensor<8192x4096xbf16>
// | }
