// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{the result of spmd.all_gather of <dp: S(0)> has the sharding <dp: S(0)>; expected <>: correct the sharding, or add a reshard}}
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  return
}
