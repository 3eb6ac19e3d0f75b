// RUN: spmd-opt %s --localize --split-async --reorder="memory=auto" --verify-spmd | spmd report - --view timeline
// Each product needs the sum before it, so the accelerator waits for the ranks along tp. Meanwhile a weight is gathered along dp, whose
// groups share one rank with those of tp.
spmd.mesh @mesh <dp = 4, tp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}, %w1: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w2: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<8192x4096xbf16> <dp: S(0), tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<8192x4096xbf16> <dp: S(0)>
  %g2 = spmd.all_gather %w2 on [dp] dim 0 : tensor<4096x4096xbf16> <>
  %2 = aten.mm(%1, %g2) : tensor<8192x4096xbf16> <dp: S(0)>
  return %2 : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <dp = 4, tp = 8>
// |
// | func.func @main(%x: tensor<2048x512xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |                 %w1: tensor<512x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %w2: tensor<1024x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<2048x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %0 = aten.mm(%x, %w1) : tensor<2048x4096xbf16> <dp: S(0), tp: P(sum)>
// |   %_1.start = spmd.all_reduce_start %0 on [tp] op sum : !spmd.pending<tensor<2048x4096xbf16>> <dp: S(0)>
// |   %g2.start = spmd.all_gather_start %w2 on [dp] dim 0 : !spmd.pending<tensor<4096x4096xbf16>> <>
// |   %g2 = spmd.wait %g2.start : tensor<4096x4096xbf16> <>
// |   %1 = spmd.wait %_1.start : tensor<2048x4096xbf16> <dp: S(0)>
// |   %2 = aten.mm(%1, %g2) : tensor<2048x4096xbf16> <dp: S(0)>
// |   return %2 : tensor<2048x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                          live
// |      0.0    14.4  compute  %0 aten.mm                  31.46 MB
// |     14.4   150.8  dp       %g2.start all_gather_start
// |     14.4   150.8  compute  waits for %g2.start         81.79 MB
// |     14.4   191.6  tp       %_1.start all_reduce_start
// |    150.8   191.6  compute  waits for %_1.start         81.79 MB
// |    191.6   292.8  compute  %2 aten.mm                  81.79 MB
