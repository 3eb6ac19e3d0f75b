// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  // expected-error@+1 {{has the arguments [2]; expected one of the 2 dimensions of its tensor}}
  %n = aten.sym_size.int(%x, 2) : !spmd.size<s0>
  %0 = aten.expand(%x) {size = [%n, 4]} : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
