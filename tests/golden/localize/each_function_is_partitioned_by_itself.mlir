// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize --verify-spmd
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4xf32> {
  %0 = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func @g(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.relu(%x) : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<4xf32> <tp: P(sum)>
// |   %_0.reshard = spmd.reduce_scatter %0 on [tp] dim 0 op sum : tensor<2xf32> <tp: S(0)>
// |   return %_0.reshard : tensor<2xf32>
// | }
// |
// | func.func @g(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.relu(%x) : tensor<4x4xf32> <tp: S(1)>
// |   %_0.reshard = spmd.all_gather %0 on [tp] dim 1 : tensor<4x8xf32> <>
// |   return %_0.reshard : tensor<4x8xf32>
// | }
