// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{found 'f32', expected a type: tensor<16x64xf32> or none}}
  %0 = aten.relu(%x) : f32
  return
}
