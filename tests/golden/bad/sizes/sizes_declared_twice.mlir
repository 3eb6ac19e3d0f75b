// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}
// expected-error@+1 {{the module has 2 spmd.sizes ops; expected one: declare all sizes in it}}
spmd.sizes {s1 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
