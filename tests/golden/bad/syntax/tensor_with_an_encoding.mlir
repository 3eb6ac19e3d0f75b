// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// expected-error@+1 {{expected a tensor of a known element type}}
func.func @f(%x: tensor<8xf32, "rows">) -> tensor<8xf32, "rows"> {
  return %x : tensor<8xf32, "rows">
}
