// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{partial values of different kinds (max, sum) do not commute}}
  %0 = spmd.partition %x on [dp] op max : tensor<16x8xf32> <dp: P(max), tp: P(sum)>
  return
}
