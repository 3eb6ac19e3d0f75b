// RUN: spmd-opt %s --print-rules --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>, %i: tensor<8xi64>) -> tensor<8xf32> {
  // expected-error@+1 {{2 indices for a tensor of rank 1; expected at most 1}}
  %0 = aten.index.Tensor(%x, [none, %i]) : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %i: tensor<8xi64>) -> tensor<4x4xf32> {
  // expected-error@+1 {{the result has rank 2; expected 1}}
  %0 = aten.slice.Tensor(%x) {end = 4} : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// -----

func.func @f(%x: tensor<8xf32>, %i: tensor<8xi64>) -> tensor<8xf32> {
  // expected-error@+1 {{found one dimension twice for a diagonal of shape [8]; expected two different dimensions}}
  %0 = aten.diagonal(%x) {dim1 = 0, dim2 = 0} : tensor<8xf32>
  return %0 : tensor<8xf32>
}
