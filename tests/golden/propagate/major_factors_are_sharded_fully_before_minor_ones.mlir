// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --verify-spmd

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @flatten(%x: tensor<2x8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<16x6xf32> {
  %0 = aten.view(%x) {size = [16, 6]} : tensor<16x6xf32>
  %1 = aten.relu(%0) : tensor<16x6xf32>
  return %1 : tensor<16x6xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @flatten(%x: tensor<2x8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> (tensor<16x6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) attributes {spmd.stage = "lowered"} {
// |   %0 = aten.view(%x) {size = [16, 6]} : tensor<16x6xf32> <dp: S(0), tp: S(0)>
// |   %1 = aten.relu(%0) : tensor<16x6xf32> <dp: S(0), tp: S(0)>
// |   return %1 : tensor<16x6xf32>
// | }
