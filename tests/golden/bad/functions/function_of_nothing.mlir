// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{'func.func': has an empty body; expected it to end in `return`: add a `return` op}}
func.func @f(%x: tensor<8xf32>) {
}
