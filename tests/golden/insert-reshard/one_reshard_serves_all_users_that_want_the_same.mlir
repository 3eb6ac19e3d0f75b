// RUN: spmd-opt %s --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.cos(%x) : tensor<64x64xf32> <> needs (<>)
  %1 = aten.add.Tensor(%x, %x) : tensor<64x64xf32> <> needs (<>, <>)
  return %0, %1, %x : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<64x64xf32> <>
// |   %0 = aten.cos(%x.reshard) : tensor<64x64xf32> <>
// |   %1 = aten.add.Tensor(%x.reshard, %x.reshard) : tensor<64x64xf32> <>
// |   return %0, %1, %x.reshard : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
// | }
