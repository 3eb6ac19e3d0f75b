// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{unknown element type 'float' in 'tensor<64x128xfloat>'; expected one of f64, f32}}
func.func @f(%x: tensor<64x128xfloat>) -> tensor<64x128xf32> {
  return %x : tensor<64x128xf32>
}
