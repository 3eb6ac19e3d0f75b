// RUN: spmd-opt %s --localize --schedule="memory=310MB" --verify-spmd | spmd report - --view schedule,timeline
spmd.mesh @mesh <dp = 8>

// The copies are under way while products are computed: to the host as soon as the value is there, and back just in time.
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
// |                 %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "scheduled"} {
// |   %mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<8192x4096xbf16> <>
// |   %mask.offload_start = spmd.offload_start %mask : !spmd.pending<!spmd.host<tensor<8192x4096xbf16>>> <>
// |   %y = aten.mul.Tensor(%x, %mask) : tensor<8192x4096xbf16> <>
// |   %1 = aten.mm(%y, %w) : tensor<8192x4096xbf16> <>
// |   %2 = aten.mm(%1, %w) : tensor<8192x4096xbf16> <>
// |   %3 = aten.mm(%2, %w) : tensor<8192x4096xbf16> <>
// |   %mask.offload = spmd.wait %mask.offload_start : !spmd.host<tensor<8192x4096xbf16>> <>
// |   %wide = aten.cat([%3, %3]) {dim = 1} : tensor<8192x8192xbf16> <>
// |   %part = aten.slice.Tensor(%wide) {dim = 1, end = 4096, start = 0, step = 1} : tensor<8192x4096xbf16> <>
// |   %4 = aten.mm(%part, %w) : tensor<8192x4096xbf16> <>
// |   %mask.reload_start = spmd.reload_start %mask.offload : !spmd.pending<tensor<8192x4096xbf16>> <>
// |   %5 = aten.mm(%4, %w) : tensor<8192x4096xbf16> <>
// |   %6 = aten.mm(%5, %w) : tensor<8192x4096xbf16> <>
// |   %mask.reload = spmd.wait %mask.reload_start : tensor<8192x4096xbf16> <>
// |   %dx = aten.mul.Tensor(%6, %mask.reload) : tensor<8192x4096xbf16> <>
// |   return %dx : tensor<8192x4096xbf16>
// | }
// $ spmd report - --view schedule,timeline
// | step of a rank 3.27 ms: compute 2.623 ms, exposed communication 0.647 ms of 2.704 ms
// | collective  axes  count      sent     ms  exposed  hidden by
// | reload                1  67.11 MB  1.352   0.5541  aten.mm 0.7981
// | offload               1  67.11 MB  1.352  0.09293  aten.mm 1.197, aten.mul.Tensor 0.0621
// | peak of live memory 302 MB, at %1
// | host memory 67.11 MB
// | largest
// |   x       67.11 MB  inputs
// |   %mask   67.11 MB  activations
// |   %y      67.11 MB  activations
// |   %1      67.11 MB  activations
// |   w       33.55 MB  inputs
// |
// | start us  end us  stream     op                                 live
// |      0.0    42.1  compute    %mask aten.bernoulli.p             167.8 MB
// |     42.1   104.2  compute    %y aten.mul.Tensor                 234.9 MB
// |     42.1  1394.2  to host    %mask.offload_start offload_start
// |    104.2   503.2  compute    %1 aten.mm                         302 MB
// |    503.2   902.3  compute    %2 aten.mm                         302 MB
// |    902.3  1301.3  compute    %3 aten.mm                         302 MB
// |   1301.3  1394.2  compute    waits for %mask.offload_start      234.9 MB
// |   1394.2  1456.3  compute    %wide aten.cat                     302 MB
// |   1456.3  1855.4  compute    %4 aten.mm                         302 MB
// |   1855.4  2254.4  compute    %5 aten.mm                         302 MB
// |   1855.4  3207.6  from host  %mask.reload_start reload_start
// |   2254.4  2653.5  compute    %6 aten.mm                         302 MB
// |   2653.5  3207.6  compute    waits for %mask.reload_start       234.9 MB
// |   3207.6  3269.7  compute    %dx aten.mul.Tensor                302 MB
