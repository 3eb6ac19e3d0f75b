// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x4xf32> {
  // expected-error@+1 {{aten.mm has no operand 'mat2'; expected a tensor: pass it}}
  %0 = aten.mm(%x) : tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
}
