// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %z: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: R, dp: S(1)>})
    -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.constraint %x : tensor<64x256xf32> <>
  %1 = aten.add.Tensor(%0, %y) : tensor<64x256xf32>
  %2 = aten.add.Tensor(%1, %z) : tensor<64x256xf32>
  return %2 : tensor<64x256xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %y: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %z: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = spmd.constraint %x : tensor<64x256xf32> <> needs (<>)
// |   %1 = aten.add.Tensor(%0, %y) : tensor<64x256xf32> <dp: S(0)> needs (<dp: S(0)>, <dp: S(0)>)
// |   %2 = aten.add.Tensor(%1, %z) : tensor<64x256xf32> <dp: S(0)> needs (_, <dp: S(0)>)
// |   return %2 : tensor<64x256xf32>
// | }
