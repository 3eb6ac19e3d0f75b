// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.reshard': has no sharding; expected that of its result: write it, as in `spmd.reshard %x : tensor<8x4xf32> <dp: S(0)>`}}
  %0 = spmd.reshard %x : tensor<16x8xf32>
  return
}
