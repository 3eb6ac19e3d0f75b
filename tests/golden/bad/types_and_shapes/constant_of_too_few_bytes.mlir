// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has a value of 1 bytes; its type requires 4}}
  %0 = spmd.constant value "00" : tensor<1xf32>
  return
}
