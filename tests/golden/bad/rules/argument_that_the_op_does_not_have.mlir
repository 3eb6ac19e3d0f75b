// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16xf32> {
  // expected-error@+1 {{has no parameter 'dims'; expected one of self, dim, keepdim, dtype}}
  %0 = aten.sum.dim_IntList(%x) {dims = [1]} : tensor<16xf32>
  return %0 : tensor<16xf32>
}
