// RUN: spmd-opt %s --verify-spmd | spmd report - --view schedule,timeline
// %b is on its way to the host while %a comes back and the ranks gather; the second copy to the host waits for the first.
spmd.mesh @mesh <dp = 8>

func.func @main(%a: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<512x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  %0 = spmd.offload_start %a : !spmd.pending<!spmd.host<tensor<4096x4096xf32>>> <>
  %1 = spmd.offload_start %b : !spmd.pending<!spmd.host<tensor<4096x4096xf32>>> <>
  %a.host = spmd.wait %0 : !spmd.host<tensor<4096x4096xf32>> <>
  %2 = spmd.reload_start %a.host : !spmd.pending<tensor<4096x4096xf32>> <>
  %3 = spmd.all_gather_start %w on [dp] dim 0 : !spmd.pending<tensor<4096x4096xf32>> <>
  %4 = aten.mm(%a, %b) : tensor<4096x4096xf32> <>
  %5 = spmd.wait %3 : tensor<4096x4096xf32> <>
  %b.host = spmd.wait %1 : !spmd.host<tensor<4096x4096xf32>> <>
  %a.back = spmd.wait %2 : tensor<4096x4096xf32> <>
  %6 = aten.add.Tensor(%4, %5) : tensor<4096x4096xf32> <>
  %7 = aten.add.Tensor(%6, %a.back) : tensor<4096x4096xf32> <>
  %b.back = spmd.reload %b.host : tensor<4096x4096xf32> <>
  return %7, %b.back : tensor<4096x4096xf32>, tensor<4096x4096xf32>
}

// | spmd.mesh @mesh <dp = 8>
// |
// | func.func @main(%a: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %b: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<512x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
// |   %0 = spmd.offload_start %a : !spmd.pending<!spmd.host<tensor<4096x4096xf32>>> <>
// |   %1 = spmd.offload_start %b : !spmd.pending<!spmd.host<tensor<4096x4096xf32>>> <>
// |   %a.host = spmd.wait %0 : !spmd.host<tensor<4096x4096xf32>> <>
// |   %2 = spmd.reload_start %a.host : !spmd.pending<tensor<4096x4096xf32>> <>
// |   %3 = spmd.all_gather_start %w on [dp] dim 0 : !spmd.pending<tensor<4096x4096xf32>> <>
// |   %4 = aten.mm(%a, %b) : tensor<4096x4096xf32> <>
// |   %5 = spmd.wait %3 : tensor<4096x4096xf32> <>
// |   %b.host = spmd.wait %1 : !spmd.host<tensor<4096x4096xf32>> <>
// |   %a.back = spmd.wait %2 : tensor<4096x4096xf32> <>
// |   %6 = aten.add.Tensor(%4, %5) : tensor<4096x4096xf32> <>
// |   %7 = aten.add.Tensor(%6, %a.back) : tensor<4096x4096xf32> <>
// |   %b.back = spmd.reload %b.host : tensor<4096x4096xf32> <>
// |   return %7, %b.back : tensor<4096x4096xf32>, tensor<4096x4096xf32>
// | }
// $ spmd report - --view schedule,timeline
// | step of a rank 5.719 ms: compute 3.015 ms, exposed communication 2.704 ms of 5.604 ms
// | collective  axes  count      sent      ms  exposed  hidden by
// | reload                2  134.2 MB   2.704    1.352  aten.mm 1.352
// | offload               2  134.2 MB   2.704    1.352  aten.mm 1.352
// | all_gather  dp        1  58.72 MB  0.1953        0  aten.mm 0.1953
// | peak of live memory 411 MB, at %6
// | host memory 134.2 MB
// | largest
// |   a    67.11 MB  inputs
// |   b    67.11 MB  inputs
// |   %2   67.11 MB  activations
// |   %3   67.11 MB  activations
// |   %4   67.11 MB  activations
// |   %6   67.11 MB  activations
// |   w    8.389 MB  inputs
// |
// | start us  end us  stream     op                   live
// |      0.0  1352.2  to host    %0 offload_start
// |      0.0  1352.2  compute    waits for %0         142.6 MB
// |   1352.2  1547.5  dp         %3 all_gather_start
// |   1352.2  2704.4  to host    %1 offload_start
// |   1352.2  2704.4  from host  %2 reload_start
// |   1352.2  4284.6  compute    %4 aten.mm           343.9 MB
// |   4284.6  4326.7  compute    %6 aten.add.Tensor   411 MB
// |   4326.7  4366.8  compute    %7 aten.add.Tensor   343.9 MB
// |   4366.8  5719.0  from host  %b.back reload
// |   4366.8  5719.0  compute    waits for %b.back    276.8 MB
