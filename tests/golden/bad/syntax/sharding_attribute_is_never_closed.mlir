// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'<' is not closed before '}'; expected '>'}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)}) {
  return
}
