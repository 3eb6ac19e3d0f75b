// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{this string is not closed on its line}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding" : tensor<16x8xf32> <dp: S(0), dp: S(1)>}) {
  return %x : tensor<16x8xf32>
}
