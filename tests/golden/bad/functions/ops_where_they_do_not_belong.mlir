// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'func.call': cannot stand in 'func.func'; expected func.return}}
  %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f() {
  // expected-error@+1 {{'spmd.mesh': cannot stand in 'func.func'}}
  spmd.mesh @mesh <dp = 2>
  return
}

// -----

// expected-error@+1 {{'func.func': has 0 blocks; expected one: a body without branches}}
func.func private @f(tensor<8xf32>) -> tensor<8xf32>
