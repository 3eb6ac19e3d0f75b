// RUN: spmd-opt %s --localize --split-async --verify-spmd
// The two stand side by side, and no time is hidden; reorder moves them apart.
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<7x4xf32>) {
  %0 = aten.exp(%x) : tensor<7x4xf32> <dp: S(0)>
  %1 = spmd.all_gather %0 on [dp] dim 0 : tensor<7x4xf32> <>
  %2 = aten.neg(%1) : tensor<7x4xf32> <>
  return %0, %2 : tensor<7x4xf32>, tensor<7x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.of = #spmd.shapes<{of = [[7, 4]]}>}) -> (tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<7x4xf32>) attributes {spmd.stage = "scheduled"} {
// |   %0 = aten.exp(%x) : tensor<?x4xf32> <dp: S(0)> of [7, 4]
// |   %_1.start = spmd.all_gather_start %0 on [dp] dim 0 : !spmd.pending<tensor<7x4xf32>> <>
// |   %1 = spmd.wait %_1.start : tensor<7x4xf32> <>
// |   %2 = aten.neg(%1) : tensor<7x4xf32> <>
// |   return %0, %2 : tensor<?x4xf32>, tensor<7x4xf32>
// | }
