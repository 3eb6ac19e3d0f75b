// RUN: spmd-opt %s

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = aten.nan_to_num(%x) {nan = 0.0, neginf = -inf, posinf = nan} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// | func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
// |   %0 = aten.nan_to_num(%x) {nan = 0.0, neginf = -inf, posinf = nan} : tensor<8xf32>
// |   return %0 : tensor<8xf32>
// | }
