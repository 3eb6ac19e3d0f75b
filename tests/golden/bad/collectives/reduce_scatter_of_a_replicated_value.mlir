// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{reduce_scatter requires 'tp' to be partial; found R in <dp: S(0)>: reshard the axis first, or use another collective}}
  %0 = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  return
}
