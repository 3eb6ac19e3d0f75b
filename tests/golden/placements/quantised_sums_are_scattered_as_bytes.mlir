// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>})
    -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = aten.relu(%x) : tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> (tensor<32x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %x.reshard = spmd.convert %x : tensor<32x32xf32> <tp: S(0)>
// |   %0 = aten.relu(%x.reshard) : tensor<32x32xf32> <tp: S(0)>
// |   return %0 : tensor<32x32xf32>
// | }
