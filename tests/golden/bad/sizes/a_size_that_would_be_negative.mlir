// RUN: spmd-opt %s --bind-sizes="s0=3" --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<4x4xf32, #spmd.dims<s0 - 4, 4>> {
  // expected-error@+1 {{the size s0 - 4 is -1 where s0 = 3; expected at least 0: give larger sizes}}
  %0 = aten.slice.Tensor(%x) {start = 4} : tensor<[s0 - 4]x4xf32>
  return %0 : tensor<4x4xf32, #spmd.dims<s0 - 4, 4>>
}
