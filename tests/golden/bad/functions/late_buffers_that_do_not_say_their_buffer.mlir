// RUN: spmd-opt %s --verify-diagnostics --split-input-file

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{'func.func': argument 0 has no spmd.buffer; expected the name of a buffer if its spmd.kind is "late_buffer", and no such attribute otherwise}}
func.func @main(%late.mean: tensor<4xf32> {spmd.kind = "late_buffer"}) -> tensor<4xf32> {
  return %late.mean : tensor<4xf32>
}

// -----

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{'func.func': argument 0 has spmd.buffer; expected the name of a buffer if its spmd.kind is "late_buffer", and no such attribute otherwise}}
func.func @main(%mean: tensor<4xf32> {spmd.buffer = "mean", spmd.kind = "buffer"}) -> tensor<4xf32> {
  return %mean : tensor<4xf32>
}
