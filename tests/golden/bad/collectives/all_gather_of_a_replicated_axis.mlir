// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{all_gather on [tp] requires the innermost axes of dimension 0 in nesting order, found [dp]}}
  %0 = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return
}
