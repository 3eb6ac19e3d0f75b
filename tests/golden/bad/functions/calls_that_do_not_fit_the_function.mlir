// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <tp = 2>

func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

func.func @main(%x: tensor<8xf32>) -> tensor<4xf32> {
  // expected-error@below {{operand type mismatch: expected operand type tensor<4xf32>, but provided tensor<8xf32>}}
  %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@below {{'@g' could not be found}}
  %0 = func.call @g(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
