// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{all_reduce has the reduction max; expected sum, the reduction of <tp: P(sum)>}}
  %0 = spmd.all_reduce %x on [tp] op max : tensor<16x8xf32> <>
  return
}
