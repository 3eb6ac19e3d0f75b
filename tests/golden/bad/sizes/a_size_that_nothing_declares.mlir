// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{'s0' contains an undeclared size}}
func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
