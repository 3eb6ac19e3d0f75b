// RUN: spmd-opt %s --propagate --verify-diagnostics
spmd.mesh @mesh <tp = 2>

func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{the function calls @f; expected a function without calls: run inline first}}
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
