// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{'s0+' is not a size; expected an expression such as 2*s0 + 1}}
func.func @f(%x: tensor<[s0 +]x4xf32>) {
  return
}
