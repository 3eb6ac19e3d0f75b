// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> attributes {spmd.stage = "local"} {
  %0 = my.op(%x) {a = 1, b = -2.5, c = 1e-05, d = "te\"xt", e = true, f = false, g = none, h = [], i = [1, [2, 3]], j = bf16} : tensor<8xf32>
  %1 = my.op(%0) {u = inf, v = -inf, w = nan, z = complex(1.0, -2.0)} : tensor<8xf32>
  %2 = my.op(%1) {n = size(10, dp, tp), o = offset(10, dp) * 2 + 1, p = end(10, dp) * -1 - 3} : tensor<8xf32>
  return %2 : tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> attributes {spmd.stage = "local"} {
// |   %0 = my.op(%x) {a = 1, b = -2.5, c = 1.0e-05, d = "te\"xt", e = true, f = false, g = none, h = [], i = [1, [2, 3]], j = bf16} : tensor<8xf32>
// |   %1 = my.op(%0) {u = inf, v = -inf, w = nan, z = complex(1.0, -2.0)} : tensor<8xf32>
// |   %2 = my.op(%1) {n = size(10, dp, tp), o = offset(10, dp) * 2 + 1, p = end(10, dp) * -1 - 3} : tensor<8xf32>
// |   return %2 : tensor<8xf32>
// | }
