// RUN: spmd-opt %s --propagate="sub-axes=none" --insert-reshard --lower-reshard

spmd.mesh @mesh <tp = 4>

func.func @apart(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x4x6xf32> {
  %0 = aten.view(%x) {size = [2, 4, 6]} : tensor<2x4x6xf32>
  return %0 : tensor<2x4x6xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @apart(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<2x4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "lowered"} {
// |   %x.reshard = spmd.all_gather %x on [tp] dim 0 : tensor<8x6xf32> <>
// |   %0 = aten.view(%x.reshard) {size = [2, 4, 6]} : tensor<2x4x6xf32> <>
// |   return %0 : tensor<2x4x6xf32>
// | }
