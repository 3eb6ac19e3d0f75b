// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<24xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 4)>}) {
  %0 = aten.view(%x) {size = [24]} : tensor<24xf32>
  return %0 : tensor<24xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<12xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 4)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.view(%x) {size = [12]} : tensor<12xf32> <tp: Strided(0, 4)>
// |   return %0 : tensor<12xf32>
// | }
