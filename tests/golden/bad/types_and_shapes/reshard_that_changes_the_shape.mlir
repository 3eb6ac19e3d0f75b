// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.reshard': changes the global shape from [16, 8] to [16, 9]}}
  %0 = spmd.reshard %x : tensor<16x9xf32> <>
  return
}
