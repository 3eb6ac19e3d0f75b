// RUN: spmd-opt %s --localize --bucket --split-async --reorder --verify-spmd
// Axis dp has one rank, so its gathers send nothing, and there is no message to save.
spmd.mesh @mesh <dp = 1, tp = 2>

func.func @main(%a: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = spmd.all_gather %a on [dp] dim 0 : tensor<8xf32> <>
  %1 = spmd.all_gather %b on [dp] dim 0 : tensor<8xf32> <>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 1, tp = 2>
// |
// | func.func @main(%a: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8xf32>, tensor<8xf32>) attributes {spmd.stage = "scheduled"} {
// |   %_0.start = spmd.all_gather_start %a on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
// |   %0 = spmd.wait %_0.start : tensor<8xf32> <>
// |   %_1.start = spmd.all_gather_start %b on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
// |   %1 = spmd.wait %_1.start : tensor<8xf32> <>
// |   return %0, %1 : tensor<8xf32>, tensor<8xf32>
// | }
