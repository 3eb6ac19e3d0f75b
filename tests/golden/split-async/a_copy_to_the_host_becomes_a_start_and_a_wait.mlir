// RUN: spmd-opt %s --localize --split-async --verify-spmd
// So does the copy back; what is on the host has a type of its own, also while it is on its way there.
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<7x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.exp(%x) : tensor<7x4xf32> <dp: S(0)>
  %1 = spmd.offload %0 : !spmd.host<tensor<7x4xf32>> <dp: S(0)>
  %2 = aten.neg(%x) : tensor<7x4xf32> <dp: S(0)>
  %3 = spmd.reload %1 : tensor<7x4xf32> <dp: S(0)>
  %4 = aten.mul.Tensor(%2, %3) : tensor<7x4xf32> <dp: S(0)>
  return %4 : tensor<7x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.of = #spmd.shapes<{of = [[7, 4]]}>}) -> (tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %0 = aten.exp(%x) : tensor<?x4xf32> <dp: S(0)> of [7, 4]
// |   %_1.offload_start = spmd.offload_start %0 : !spmd.pending<!spmd.host<tensor<?x4xf32>>> <dp: S(0)> of [7, 4]
// |   %1 = spmd.wait %_1.offload_start : !spmd.host<tensor<?x4xf32>> <dp: S(0)> of [7, 4]
// |   %2 = aten.neg(%x) : tensor<?x4xf32> <dp: S(0)> of [7, 4]
// |   %_3.reload_start = spmd.reload_start %1 : !spmd.pending<tensor<?x4xf32>> <dp: S(0)> of [7, 4]
// |   %3 = spmd.wait %_3.reload_start : tensor<?x4xf32> <dp: S(0)> of [7, 4]
// |   %4 = aten.mul.Tensor(%2, %3) : tensor<?x4xf32> <dp: S(0)> of [7, 4]
// |   return %4 : tensor<?x4xf32>
// | }
