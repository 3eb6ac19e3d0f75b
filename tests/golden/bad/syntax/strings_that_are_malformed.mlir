// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{found the string '"\\q"': Invalid \escape}}
  %0 = my.op(%x) {a = "\q"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{found the string '"a\tb"': Invalid control character at}}
  %0 = my.op(%x) {a = "a	b"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}
