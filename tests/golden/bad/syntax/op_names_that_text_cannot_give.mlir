// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is no op of a dialect, nor of torch}}
  %0 = "aten-.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is no op of a dialect, nor of torch}}
  %0 = "aten.-lu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is no op of a dialect, nor of torch}}
  %0 = "a{n.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'spmd.all_gathre' is no op of a dialect, nor of torch; did you mean 'spmd.all_gather'?; give}}
  %0 = spmd.all_gathre %x on [tp] dim 0 : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}
