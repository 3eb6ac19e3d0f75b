// RUN: spmd-opt %s --localize --fit-memory="budget=310MB remarks=true" --verify-spmd | spmd report - --view timeline
spmd.mesh @mesh <dp = 8>

// %mask waits while %wide needs room. Other numbers would be drawn the second time, so it goes to the host and comes back.
func.func @step(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<8192x4096xbf16> <>
  %y = aten.mul.Tensor(%x, %mask) : tensor<8192x4096xbf16> <>
  %1 = aten.mm(%y, %w) : tensor<8192x4096xbf16> <>
  %2 = aten.mm(%1, %w) : tensor<8192x4096xbf16> <>
  %3 = aten.mm(%2, %w) : tensor<8192x4096xbf16> <>
  %wide = aten.cat([%3, %3]) {dim = 1} : tensor<8192x8192xbf16> <>
  %part = aten.slice.Tensor(%wide) {dim = 1, end = 4096, start = 0, step = 1} : tensor<8192x4096xbf16> <>
  %4 = aten.mm(%part, %w) : tensor<8192x4096xbf16> <>
  %5 = aten.mm(%4, %w) : tensor<8192x4096xbf16> <>
  %6 = aten.mm(%5, %w) : tensor<8192x4096xbf16> <>
  %dx = aten.mul.Tensor(%6, %mask) : tensor<8192x4096xbf16> <>
  return %dx : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <dp = 8>
// |
// | func.func @step(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
// |   %mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<8192x4096xbf16> <>
// |   %y = aten.mul.Tensor(%x, %mask) : tensor<8192x4096xbf16> <>
// |   %mask.offload = spmd.offload %mask : !spmd.host<tensor<8192x4096xbf16>> <>
// |   %1 = aten.mm(%y, %w) : tensor<8192x4096xbf16> <>
// |   %2 = aten.mm(%1, %w) : tensor<8192x4096xbf16> <>
// |   %3 = aten.mm(%2, %w) : tensor<8192x4096xbf16> <>
// |   %wide = aten.cat([%3, %3]) {dim = 1} : tensor<8192x8192xbf16> <>
// |   %part = aten.slice.Tensor(%wide) {dim = 1, end = 4096, start = 0, step = 1} : tensor<8192x4096xbf16> <>
// |   %4 = aten.mm(%part, %w) : tensor<8192x4096xbf16> <>
// |   %5 = aten.mm(%4, %w) : tensor<8192x4096xbf16> <>
// |   %6 = aten.mm(%5, %w) : tensor<8192x4096xbf16> <>
// |   %mask.reload = spmd.reload %mask.offload : tensor<8192x4096xbf16> <>
// |   %dx = aten.mul.Tensor(%6, %mask.reload) : tensor<8192x4096xbf16> <>
// |   return %dx : tensor<8192x4096xbf16>
// | }
// ! %s:5:1: remark: a rank holds 302 MB at once; keeps 67.11 MB on the host, with copies of 2.704 ms
// $ spmd report - --view timeline
// | start us  end us  stream     op                       live
// |      0.0    42.1  compute    %mask aten.bernoulli.p   167.8 MB
// |     42.1   104.2  compute    %y aten.mul.Tensor       234.9 MB
// |    104.2  1456.3  to host    %mask.offload offload
// |    104.2  1456.3  compute    waits for %mask.offload  234.9 MB
// |   1456.3  1855.4  compute    %1 aten.mm               234.9 MB
// |   1855.4  2254.4  compute    %2 aten.mm               234.9 MB
// |   2254.4  2653.5  compute    %3 aten.mm               234.9 MB
// |   2653.5  2715.6  compute    %wide aten.cat           302 MB
// |   2715.6  3114.6  compute    %4 aten.mm               302 MB
// |   3114.6  3513.7  compute    %5 aten.mm               234.9 MB
// |   3513.7  3912.7  compute    %6 aten.mm               234.9 MB
// |   3912.7  5264.9  from host  %mask.reload reload
// |   3912.7  5264.9  compute    waits for %mask.reload   234.9 MB
// |   5264.9  5327.0  compute    %dx aten.mul.Tensor      302 MB
