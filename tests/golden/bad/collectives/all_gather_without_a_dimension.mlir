// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{all_gather has dimension None; expected a dimension of a tensor of rank 2, counted from 0: write it, as in `dim 0`}}
  %0 = spmd.all_gather %x on [dp] : tensor<16x8xf32> <>
  return
}
