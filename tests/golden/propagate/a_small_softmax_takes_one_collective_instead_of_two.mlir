// RUN: spmd-opt %s --propagate --expand --insert-reshard --lower-reshard
// The time of so few bytes is that of starting a collective.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten._softmax(%x) {dim = -1, half_to_float = false} : tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %x.reshard = spmd.all_gather %x on [tp] dim 1 : tensor<64x32xf32> <>
// |   %0 = aten._softmax(%x.reshard) {dim = -1, half_to_float = false} : tensor<64x32xf32> <>
// |   %_0.reshard = spmd.slice %0 on [tp] dim 1 : tensor<64x32xf32> <tp: S(1)>
// |   return %_0.reshard : tensor<64x32xf32>
// | }
