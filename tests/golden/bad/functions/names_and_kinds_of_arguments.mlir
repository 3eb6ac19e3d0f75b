// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{spmd.name of argument 0 is 3 : i64; expected a string}}
func.func @f(%x: tensor<8x8xf32> {spmd.name = 3}) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{spmd.kind of argument 0 is "foo"; expected "parameter" or "buffer"}}
func.func @f(%x: tensor<8x8xf32> {spmd.kind = "foo"}) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
