// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.relu(%x) : tensor<16x8xf32>
  // expected-error@+1 {{SSA value %0 is already defined}}
  %0 = aten.neg(%x) : tensor<16x8xf32>
  return
}
