// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --fuse-collectives --verify-spmd

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @apart_and_together(%x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten.view(%x) {size = [6, 2, 4]} : tensor<6x2x4xf32>
  %1 = aten.relu(%0) : tensor<6x2x4xf32>
  %2 = aten.view(%1) {size = [6, 8]} : tensor<6x8xf32>
  return %2 : tensor<6x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @apart_and_together(%x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %0 = aten.view(%x) {size = [6, 2, 4]} : tensor<6x2x4xf32> <tp(1)2: S(1), tp(2)2: S(2)>
// |   %1 = aten.relu(%0) : tensor<6x2x4xf32> <tp(1)2: S(1), tp(2)2: S(2)>
// |   %2 = aten.view(%1) {size = [6, 8]} : tensor<6x8xf32> <tp: S(1)>
// |   return %2 : tensor<6x8xf32>
// | }
