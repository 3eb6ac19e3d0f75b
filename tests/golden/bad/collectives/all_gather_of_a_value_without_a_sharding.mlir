// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32>) {
  // expected-error@+1 {{needs the shardings of its operand and of its result; found none on the operand}}
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <>
  return
}
