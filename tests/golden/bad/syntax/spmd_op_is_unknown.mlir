// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{unknown op 'spmd.gather'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin; did you mean 'spmd.all_gather'?}}
  %0 = spmd.gather %x : tensor<16x8xf32>
  return
}
