// RUN: spmd-opt %s --localize --split-async --reorder --verify-spmd | spmd report - --view timeline
// %g.again could hide either sum. It hides the one that its user waits for, so that it is not held from the first sum on.
spmd.mesh @mesh <tp = 8>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w1: tensor<4096x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w2: tensor<16384x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8192x4096xbf16>) {
  %g = aten.relu(%x) : tensor<8192x4096xbf16> <>
  %u = aten.mm(%g, %w1) : tensor<8192x16384xbf16> <tp: S(1)>
  %y.partial = aten.mm(%u, %w2) : tensor<8192x4096xbf16> <tp: P(sum)>
  %y = spmd.all_reduce %y.partial on [tp] op sum : tensor<8192x4096xbf16> <>
  %v = aten.mm(%y, %w1) : tensor<8192x16384xbf16> <tp: S(1)>
  %z.partial = aten.mm(%v, %w2) : tensor<8192x4096xbf16> <tp: P(sum)>
  %z = spmd.all_reduce %z.partial on [tp] op sum : tensor<8192x4096xbf16> <>
  %g.again = aten.relu(%x) : tensor<8192x4096xbf16> <> attributes {spmd.recomputes = "g"}
  %0 = aten.mul.Tensor(%z, %g.again) : tensor<8192x4096xbf16> <>
  return %0 : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <tp = 8>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w1: tensor<4096x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %w2: tensor<2048x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8192x4096xbf16> attributes {spmd.stage = "scheduled"} {
// |   %g = aten.relu(%x) : tensor<8192x4096xbf16> <>
// |   %u = aten.mm(%g, %w1) : tensor<8192x2048xbf16> <tp: S(1)>
// |   %y.partial = aten.mm(%u, %w2) : tensor<8192x4096xbf16> <tp: P(sum)>
// |   %y.start = spmd.all_reduce_start %y.partial on [tp] op sum : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %y = spmd.wait %y.start : tensor<8192x4096xbf16> <>
// |   %v = aten.mm(%y, %w1) : tensor<8192x2048xbf16> <tp: S(1)>
// |   %z.partial = aten.mm(%v, %w2) : tensor<8192x4096xbf16> <tp: P(sum)>
// |   %z.start = spmd.all_reduce_start %z.partial on [tp] op sum : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %g.again = aten.relu(%x) : tensor<8192x4096xbf16> <> attributes {spmd.recomputes = "g"}
// |   %z = spmd.wait %z.start : tensor<8192x4096xbf16> <>
// |   %0 = aten.mul.Tensor(%z, %g.again) : tensor<8192x4096xbf16> <>
// |   return %0 : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view timeline
// | start us  end us  stream   op                         live
// |      0.0    42.1  compute  %g aten.relu               167.8 MB
// |     42.1   242.6  compute  %u aten.mm                 201.3 MB
// |    242.6   443.1  compute  %y.partial aten.mm         201.3 MB
// |    443.1   825.3  tp       %y.start all_reduce_start
// |    443.1   825.3  compute  waits for %y.start         234.9 MB
// |    825.3  1025.9  compute  %v aten.mm                 201.3 MB
// |   1025.9  1226.4  compute  %z.partial aten.mm         201.3 MB
// |   1226.4  1248.4  compute  %g.again aten.relu         302 MB
// |   1226.4  1608.6  tp       %z.start all_reduce_start
// |   1248.4  1608.6  compute  waits for %z.start         302 MB
// |   1608.6  1648.7  compute  %0 aten.mul.Tensor         302 MB
