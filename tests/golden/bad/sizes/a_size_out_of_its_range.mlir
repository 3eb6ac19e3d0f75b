// RUN: spmd-opt %s --bind-sizes="s0=65" --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{size 's0' is 65; expected 2 to 64, for which the program was traced: use a size in this range, or trace the program for a larger range}}
spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
