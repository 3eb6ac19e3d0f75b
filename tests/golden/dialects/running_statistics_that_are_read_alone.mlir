// RUN: spmd-opt %s
func.func @f(%x: tensor<2x3x4xf32>, %mean: tensor<3xf32>, %var: tensor<3xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>) {
  %0 = aten.batch_norm(%x, none, none, %mean, %var) {cudnn_enabled = false, eps = 0.1, momentum = 0.1, training = false} : tensor<2x3x4xf32>
  %1 = aten.batch_norm(%0) {cudnn_enabled = false, eps = 0.1, momentum = 0.1, training = true} : tensor<2x3x4xf32>
  return %0, %1 : tensor<2x3x4xf32>, tensor<2x3x4xf32>
}

// | func.func @f(%x: tensor<2x3x4xf32>,
// |              %mean: tensor<3xf32>,
// |              %var: tensor<3xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>) {
// |   %0 = aten.batch_norm(%x, none, none, %mean, %var) {cudnn_enabled = false, eps = 0.1, momentum = 0.1, training = false} : tensor<2x3x4xf32>
// |   %1 = aten.batch_norm(%0) {cudnn_enabled = false, eps = 0.1, momentum = 0.1, training = true} : tensor<2x3x4xf32>
// |   return %0, %1 : tensor<2x3x4xf32>, tensor<2x3x4xf32>
// | }
