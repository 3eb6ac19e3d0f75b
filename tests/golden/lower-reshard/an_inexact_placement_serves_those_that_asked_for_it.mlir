// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard
spmd.mesh @mesh <tp = 2>

// What follows the constraint takes the sum as bytes; what takes the product itself has it exactly.
func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %w: tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%x, %w) : tensor<64x16xf32>
  %1 = spmd.constraint %0 : tensor<64x16xf32> <tp: Quantised>
  %2 = aten.relu(%1) : tensor<64x16xf32>
  return %2, %0 : tensor<64x16xf32>, tensor<64x16xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %w: tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "lowered"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x16xf32> <tp: P(sum)>
// |   %_0.reshard = spmd.convert %0 : tensor<64x16xf32> <tp: Quantised>
// |   %_0.reshard_1 = spmd.convert %_0.reshard : tensor<64x16xf32> <>
// |   %2 = aten.relu(%_0.reshard_1) : tensor<64x16xf32> <>
// |   %_0.reshard_2 = spmd.all_reduce %0 on [tp] op sum : tensor<64x16xf32> <>
// |   return %2, %_0.reshard_2 : tensor<64x16xf32>, tensor<64x16xf32>
// | }
