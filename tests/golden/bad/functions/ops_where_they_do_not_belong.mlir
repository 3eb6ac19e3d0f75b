// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f() {
  return
}

// expected-error@+1 {{'func.call': is not allowed in 'builtin.module'; expected spmd.mesh, spmd.sizes, func.func}}
func.call @f() : () -> ()

// -----

func.func @f() {
  // expected-error@+1 {{'spmd.mesh': is not allowed in 'func.func'; expected func.call, func.return}}
  spmd.mesh @mesh <dp = 2>
  return
}

// -----

// expected-error@+1 {{'func.func': has 0 blocks; expected one: write the body without branches}}
func.func private @f(tensor<8xf32>) -> tensor<8xf32>
