// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<4xf32>) {
  return
// expected-error@+1 {{expected an operation or '}'}}
