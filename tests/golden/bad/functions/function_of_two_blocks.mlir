// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{has 2 blocks; expected one: write the body without branches}}
func.func @f(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  return %x : tensor<16x8xf32>
^second:
  return %x : tensor<16x8xf32>
}
