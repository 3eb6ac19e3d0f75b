// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 1)>}) -> tensor<48xf32> {
  %0 = aten.view(%x) {size = [48]} : tensor<48xf32>
  return %0 : tensor<48xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 1)>}) -> (tensor<24xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 6)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.view(%x) {size = [24]} : tensor<24xf32> <tp: Cyclic(0, 6)>
// |   return %0 : tensor<24xf32>
// | }
