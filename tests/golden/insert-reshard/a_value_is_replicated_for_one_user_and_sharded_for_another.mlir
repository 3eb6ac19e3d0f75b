// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = aten.mm(%x, %w) : tensor<64x64xf32>
  %1 = spmd.constraint %0 : tensor<64x64xf32> <>
  %2 = aten.cos(%1) : tensor<64x64xf32> <>
  %3 = spmd.constraint %0 : tensor<64x64xf32> <tp: S(0)>
  %4 = aten.sin(%3) : tensor<64x64xf32> <tp: S(0)>
  return %2, %4 : tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x64xf32> <tp: P(sum)>
// |   %_0.reshard = spmd.reshard %0 : tensor<64x64xf32> <>
// |   %2 = aten.cos(%_0.reshard) : tensor<64x64xf32> <>
// |   %_0.reshard_1 = spmd.reshard %0 : tensor<64x64xf32> <tp: S(0)>
// |   %4 = aten.sin(%_0.reshard_1) : tensor<64x64xf32> <tp: S(0)>
// |   return %2, %4 : tensor<64x64xf32>, tensor<64x64xf32>
// | }
