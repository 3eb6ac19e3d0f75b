// RUN: --insert-reshard
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
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
// |   %0 = aten.cos(%x) : tensor<64x64xf32> <tp: S(0)>
// |   %1 = spmd.reshard %0 : tensor<64x64xf32> <>
// |   %2 = aten.add.Tensor(%1, %1) : tensor<64x64xf32> <>
// |   return %2, %0 : tensor<64x64xf32>, tensor<64x64xf32>
// | }
