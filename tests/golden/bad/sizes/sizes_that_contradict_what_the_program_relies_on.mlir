// RUN: spmd-opt %s --bind-sizes="s0=6" --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{sizes s0 = 6 violate 's0 % 4 == 0'; expected sizes that meet it, as in the trace: change the sizes}}
spmd.sizes {s0 = 8 in 2..64, s0 % 4 == 0}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
