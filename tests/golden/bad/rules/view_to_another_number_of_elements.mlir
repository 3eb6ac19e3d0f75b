// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<17x8xf32> {
  // expected-error@+1 {{128 elements cannot be viewed as shape [17, 8]}}
  %0 = aten.view(%x) {size = [17, 8]} : tensor<17x8xf32>
  return %0 : tensor<17x8xf32>
}
