// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{the arguments are not closed; expected '}'}}
  %0 = aten.sum.dim_IntList(%x) {dim = [1, } : tensor<16xf32>
  return
}
