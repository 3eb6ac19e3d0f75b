// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4x8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4x128xf32> {
  %0 = aten.view(%x) {size = [4, 128]} : tensor<4x128xf32>
  %1 = aten.exp(%0) : tensor<4x128xf32>
  return %1 : tensor<4x128xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4x8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %0 = aten.view(%x) {size = [4, 128]} : tensor<4x128xf32> <tp: S(1)>
// |   %1 = aten.exp(%0) : tensor<4x128xf32> <tp: S(1)>
// |   return %1 : tensor<4x128xf32>
// | }
