// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd
// The groups of [dp(1)2] are within those of [dp], though no axis has the same name.
spmd.mesh @mesh <dp = 4>

func.func @main(%x: tensor<256x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %a: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp(1)2: S(0)>}, %b: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<256x4096xbf16>) {
  %0 = aten.relu(%x) : tensor<256x4096xbf16> <>
  %ga = spmd.all_gather %a on [dp(1)2] dim 0 : tensor<4096x4096xbf16> <>
  %1 = aten.mm(%0, %ga) : tensor<256x4096xbf16> <>
  %gb = spmd.all_gather %b on [dp] dim 0 : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %gb) : tensor<256x4096xbf16> <>
  return %2 : tensor<256x4096xbf16>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @main(%x: tensor<256x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %a: tensor<2048x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp(1)2: S(0)>},
// |                 %b: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<256x4096xbf16> attributes {spmd.stage = "scheduled"} {
// |   %ga.start = spmd.all_gather_start %a on [dp(1)2] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.relu(%x) : tensor<256x4096xbf16> <>
// |   %ga = spmd.wait %ga.start : tensor<4096x4096xbf16> <>
// |   %gb.start = spmd.all_gather_start %b on [dp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %1 = aten.mm(%0, %ga) : tensor<256x4096xbf16> <>
// |   %gb = spmd.wait %gb.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %gb) : tensor<256x4096xbf16> <>
// |   return %2 : tensor<256x4096xbf16>
// | }
