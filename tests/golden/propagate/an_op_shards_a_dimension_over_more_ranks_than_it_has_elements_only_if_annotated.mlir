// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<3x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<3x3xf32>) -> (tensor<3x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<3x3xf32>) {
  %0 = aten.cos(%x) : tensor<3x256xf32> <dp: S(0)>
  %1 = aten.cos(%y) : tensor<3x3xf32>
  return %0, %1 : tensor<3x256xf32>, tensor<3x3xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<3x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %y: tensor<3x3xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<3x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<3x3xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.cos(%x) : tensor<3x256xf32> <dp: S(0)>
// |   %1 = aten.cos(%y) : tensor<3x3xf32> <>
// |   return %0, %1 : tensor<3x256xf32>, tensor<3x3xf32>
// | }
