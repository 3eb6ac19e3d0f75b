// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32>) {
  // expected-error@+1 {{a collective requires the shardings of its operand and of its result; the operand %x has none: annotate the argument, as in `%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}`}}
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <>
  return
}
