// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{'func.func': is empty; expected it to end in `return`}}
func.func @f(%x: tensor<8xf32>) {
}
