// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// The groups of [dp] are within those of [dp, tp]: ranks that run the two in different orders would wait for each other. So the second
// gather begins when the first one has been waited for, though there is time for it before.
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
// |                 %b: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8192x4096xbf16> attributes {spmd.stage = "scheduled"} {
// |   %ga.start = spmd.all_gather_start %a on [dp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %0 = aten.relu(%x) : tensor<8192x4096xbf16> <>
// |   %ga = spmd.wait %ga.start : tensor<4096x4096xbf16> <>
// |   %gb.start = spmd.all_gather_start %b on [dp, tp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %1 = aten.mm(%0, %ga) : tensor<8192x4096xbf16> <>
// |   %gb = spmd.wait %gb.start : tensor<4096x4096xbf16> <>
// |   %2 = aten.mm(%1, %gb) : tensor<8192x4096xbf16> <>
// |   return %2 : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                          live
// |      0.0    42.1  compute  %0 aten.relu                180.4 MB
// |      0.0    88.5  dp       %ga.start all_gather_start
// |     42.1    88.5  compute  waits for %ga.start         180.4 MB
// |     88.5   202.3  dp, tp   %gb.start all_gather_start
// |     88.5   487.6  compute  %1 aten.mm                  281 MB
// |    487.6   886.6  compute  %2 aten.mm                  247.5 MB
