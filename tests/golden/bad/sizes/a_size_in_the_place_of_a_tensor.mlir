// RUN: spmd-opt %s --verify-diagnostics --split-input-file --propagate

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  %n = aten.sym_size.int(%x, 0) : !spmd.size<s0>
  // expected-error@+1 {{operand 0 is !spmd.size<s0>; expected a tensor}}
  %0 = aten.mul.Tensor(%n, %x) : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}

// -----
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0, %1, %2 = aten.native_batch_norm_backward(%x, %x, none, none, none, none, none) {eps = 1.0, output_mask = [true, false, false], train = true} : tensor<4x4xf32>, none, none
  // expected-error@+1 {{operand 1 is none; expected a tensor}}
  %3 = aten.mul.Tensor(%0, %1) : tensor<4x4xf32>
  return %3 : tensor<4x4xf32>
}
