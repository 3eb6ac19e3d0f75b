// RUN: spmd-opt %s --bind-sizes="s1=4" --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{size 's0' has no value; expected one, as in s0=8}}
spmd.sizes {s0 = 8 in 2.., s1 = 4 in 2..}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
