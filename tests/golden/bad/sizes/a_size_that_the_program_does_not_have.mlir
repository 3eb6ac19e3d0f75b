// RUN: spmd-opt %s --bind-sizes="s0=4 s00=3" --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{there is no size 's00'; expected one of s0; did you mean 's0'?}}
spmd.sizes {s0 = 8 in 2..}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
