// RUN: spmd-opt %s --localize --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{'aten.relu' has a value without a sharding; expected a sharding for each value: run propagate first}}
  %0 = aten.relu(%x) : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
