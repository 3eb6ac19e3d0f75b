// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) {
  // expected-error@+1 {{found [dp, tp] in <dp: S(0), tp: S(0)>; expected these axes last: move the inner axes first}}
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return
}
