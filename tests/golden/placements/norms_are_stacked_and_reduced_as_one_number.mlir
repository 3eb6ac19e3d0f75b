// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

// As clipping by the norm of all gradients does; the second gradient is on every rank.
spmd.mesh @mesh <dp = 2>

func.func @f(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %b: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.linalg_vector_norm(%a) {ord = 2} : tensor<f32> <dp: Norm(2)>
  %1 = aten.linalg_vector_norm(%b) {ord = 2} : tensor<f32> <dp: Norm(2)>
  %2 = aten.stack([%0, %1]) : tensor<2xf32>
  %3 = aten.linalg_vector_norm(%2) {ord = 2} : tensor<f32>
  %4 = aten.mul.Tensor(%a, %3) : tensor<8x4xf32>
  return %4 : tensor<8x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%a: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %b: tensor<3xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.linalg_vector_norm(%a) {ord = 2} : tensor<f32> <dp: Norm(2)>
// |   %1 = aten.linalg_vector_norm(%b) {ord = 2} : tensor<f32> <dp: Norm(2)>
// |   %2 = aten.stack([%0, %1]) : tensor<2xf32> <dp: Norm(2)>
// |   %3 = aten.linalg_vector_norm(%2) {ord = 2} : tensor<f32> <dp: Norm(2)>
// |   %_3.reshard = spmd.all_reduce %3 on [dp] op "Norm(2)" : tensor<f32> <>
// |   %4 = aten.mul.Tensor(%a, %_3.reshard) : tensor<4x4xf32> <dp: S(0)>
// |   return %4 : tensor<4x4xf32>
// | }
