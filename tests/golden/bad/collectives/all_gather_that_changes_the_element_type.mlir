// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.all_gather': changes the element type from f32 to bf16}}
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xbf16> <>
  return
}
