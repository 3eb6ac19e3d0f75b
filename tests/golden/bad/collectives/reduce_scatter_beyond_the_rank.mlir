// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{reduce_scatter has dimension 5; expected a dimension of a tensor of rank 2, counted from 0: write it, as in `dim 0`}}
  %0 = spmd.reduce_scatter %x on [tp] dim 5 op sum : tensor<16x8xf32> <tp: S(0)>
  return
}
