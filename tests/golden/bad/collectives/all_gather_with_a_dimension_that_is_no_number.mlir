// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.all_gather': has dim 'a'; expected a number for the dimension}}
  %0 = spmd.all_gather %x on [dp] dim "a" : tensor<16x8xf32> <>
  return
}
