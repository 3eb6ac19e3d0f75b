// RUN: spmd-opt %s --propagate --insert-reshard --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x8xf32> {
  // expected-warning@+1 {{'mylib.op' has no rule, so it runs replicated; give it a rule with --load-plugin}}
  %0 = mylib.op(%x) : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
