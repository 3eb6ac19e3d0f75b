// RUN: spmd-opt %s --propagate

spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(12)>}) -> (tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(12)>}) {
  %0 = aten.relu(%x) : tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32>
  return %0 : tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(12)>}) -> (tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(12)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.relu(%x) : tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32> <tp: S(12)>
// |   return %0 : tensor<1x1x1x1x1x1x1x1x1x1x1x1x8xf32>
// | }
