// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{size s0 = 8 in 10..64: the example 8 is outside the range; expected an example in it: change the example or the range}}
spmd.sizes {s0 = 8 in 10..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %0 = aten.relu(%x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
