// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{all_to_all is from dimension 0 to itself}}
  %0 = spmd.all_to_all %x on [dp] from 0 to 0 : tensor<16x8xf32> <dp: S(0)>
  return
}
