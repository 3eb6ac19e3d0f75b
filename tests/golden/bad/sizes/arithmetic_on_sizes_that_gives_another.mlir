// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<16x4xf32, #spmd.dims<2*s0, 4>> {
  %n = aten.sym_size.int(%x, 0) : !spmd.size<s0>
  // expected-error@+1 {{'operator.mul': has the result type !spmd.size<2*s0>; expected !spmd.size<3*s0>}}
  %m = operator.mul(%n, 3) : !spmd.size<2*s0>
  %0 = aten.full() {size = [%m, 4], fill_value = 1.0} : tensor<[2*s0]x4xf32>
  return %0 : tensor<16x4xf32, #spmd.dims<2*s0, 4>>
}
