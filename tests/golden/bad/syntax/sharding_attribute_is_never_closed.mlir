// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{bracket is never closed}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)}) {
  return
}
