// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{unknown op 'aten-.relu'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin}}
  %0 = "aten-.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{unknown op 'aten.-lu'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin}}
  %0 = "aten.-lu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{unknown op 'a{n.relu'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin}}
  %0 = "a{n.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{unknown op 'spmd.all_gathre'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin; did you mean 'spmd.all_gather'?}}
  %0 = spmd.all_gathre %x on [tp] dim 0 : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}
