// RUN: spmd-opt %s --propagate --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{result 0 has the element type f32; expected complex<f32>}}
  %0 = aten.mul.Scalar(%x) {other = complex(1.0, 2.0)} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{cannot compute (1+2j) <= 0.0; expected operands to which Python can apply this operator: correct their types}}
  %0 = aten.threshold(%x) {threshold = 0.0, value = complex(1.0, 2.0)} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dim' is [none]; expected an integer}}
  %0 = aten._softmax(%x) {half_to_float = false} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<f32>) -> tensor<4x8xf32> {
  // expected-error@+1 {{found 2 dimensions for `*`; expected at most 0}}
  %0 = aten.sqrt(%x) : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
