// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{tensor}}
func.func @f(%x: memref<16x8xf32>) {
  return
}
