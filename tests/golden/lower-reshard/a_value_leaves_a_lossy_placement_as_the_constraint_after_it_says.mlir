// RUN: spmd-opt %s --canonicalize --lower-reshard
spmd.mesh @mesh <tp = 2>

// The sum is scattered as bytes and gathered then; gathering bytes would round otherwise.
func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8x4xf32> {
  %0 = spmd.reshard %x : tensor<8x4xf32> <tp: S(0)>
  %1 = spmd.reshard %0 : tensor<8x4xf32> <>
  return %1 : tensor<8x4xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8x4xf32> attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.convert %x : tensor<8x4xf32> <tp: S(0)>
// |   %1 = spmd.all_gather %0 on [tp] dim 0 : tensor<8x4xf32> <>
// |   return %1 : tensor<8x4xf32>
// | }
