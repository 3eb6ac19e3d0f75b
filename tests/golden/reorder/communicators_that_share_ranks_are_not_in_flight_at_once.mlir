// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd
// The groups of [dp] are within those of [dp, tp]: ranks that run the two in different orders would wait for each other.
spmd.mesh @mesh <dp = 4, tp = 2>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %a: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %b: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<8192x4096xbf16>) {
  %0 = aten.relu(%x) : tensor<8192x4096xbf16> <>
  %ga = spmd.all_gather %a on [dp] dim 0 : tensor<4096x4096xbf16> <>
  %1 = aten.mm(%0, %ga) : tensor<8192x4096xbf16> <>
  %gb = spmd.all_gather %b on [dp, tp] dim 0 : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %gb) : tensor<8192x4096xbf16> <>
  return %2 : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <dp = 4, tp = 2>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %a: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %b: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8192x4096xbf16> attributes {spmd.local} {
// |   %ga.start = spmd.all_gather_start %a on [dp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.relu(%x) : tensor<8192x4096xbf16> <>
// |   %ga = spmd.wait %ga.start : tensor<4096x4096xbf16> <>
// |   %gb.start = spmd.all_gather_start %b on [dp, tp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %1 = aten.mm(%0, %ga) : tensor<8192x4096xbf16> <>
// |   %gb = spmd.wait %gb.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %gb) : tensor<8192x4096xbf16> <>
// |   return %2 : tensor<8192x4096xbf16>
// | }
