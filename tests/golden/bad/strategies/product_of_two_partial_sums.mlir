// RUN: spmd-opt %s --verify-spmd --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{(P(sum), P(sum)) -> (P(sum)) is not a strategy of this op}}
  %0 = aten.mul.Tensor(%x, %x) : tensor<16x8xf32> <tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<16x8xf32> <>
  return %1 : tensor<16x8xf32>
}
