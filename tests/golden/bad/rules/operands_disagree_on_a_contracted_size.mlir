// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<9x4xf32>) -> tensor<16x4xf32> {
  // expected-error@+1 {{operand 'mat2' has k = 9}}
  %0 = aten.mm(%x, %w) : tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
}
