// RUN: spmd-opt %s --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = spmd.constraint %x : tensor<64x64xf32> <tp: S(0)>
  %1 = aten.cos(%0) : tensor<64x64xf32> <tp: S(0)>
  %2 = spmd.constraint %1 : tensor<64x64xf32> <>
  %3 = spmd.reshard %1 : tensor<64x64xf32> <>
  %4 = aten.add.Tensor(%2, %3) : tensor<64x64xf32> <>
  return %4, %1 : tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %1 = aten.cos(%x) : tensor<64x64xf32> <tp: S(0)>
// |   %_1.reshard = spmd.reshard %1 : tensor<64x64xf32> <>
// |   %4 = aten.add.Tensor(%_1.reshard, %_1.reshard) : tensor<64x64xf32> <>
// |   return %4, %1 : tensor<64x64xf32>, tensor<64x64xf32>
// | }
