// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = aten.pow.Tensor_Scalar(%x) {exponent = 1} : tensor<8xf32>
  %1 = aten.pow.Tensor_Scalar(%0) {exponent = 1.0} : tensor<8xf32>
  %2 = my.op(%1) {a = true} : tensor<8xf32>
  %3 = my.op(%2) {a = 1} : tensor<8xf32>
  %4 = my.op(%3) {a = [0.0]} : tensor<8xf32>
  %5 = my.op(%4) {a = [-0.0]} : tensor<8xf32>
  %6 = my.op(%5) {a = [false]} : tensor<8xf32>
  %7 = my.op(%6) {a = complex(1.0, 0.0)} : tensor<8xf32>
  return %7 : tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
// |   %0 = aten.pow.Tensor_Scalar(%x) {exponent = 1} : tensor<8xf32>
// |   %1 = aten.pow.Tensor_Scalar(%0) {exponent = 1.0} : tensor<8xf32>
// |   %2 = my.op(%1) {a = true} : tensor<8xf32>
// |   %3 = my.op(%2) {a = 1} : tensor<8xf32>
// |   %4 = my.op(%3) {a = [0.0]} : tensor<8xf32>
// |   %5 = my.op(%4) {a = [-0.0]} : tensor<8xf32>
// |   %6 = my.op(%5) {a = [false]} : tensor<8xf32>
// |   %7 = my.op(%6) {a = complex(1.0, 0.0)} : tensor<8xf32>
// |   return %7 : tensor<8xf32>
// | }
