// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'func.func': argument 0 is memref<16x8xf32>; expected a tensor of a known element type}}
func.func @f(%x: memref<16x8xf32>) {
  return
}
