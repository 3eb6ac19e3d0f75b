// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.constraint': changes the global shape from [16, 8] to [8, 16]}}
  %0 = spmd.constraint %x : tensor<8x16xf32> <dp: S(0)>
  return
}
