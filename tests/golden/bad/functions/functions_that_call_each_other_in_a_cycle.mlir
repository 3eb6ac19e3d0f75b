// RUN: spmd-opt %s --inline --verify-diagnostics
spmd.mesh @mesh <tp = 2>

// expected-error@below {{functions call each other in a cycle, @f -> @g -> @f; expected calls without recursion}}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
