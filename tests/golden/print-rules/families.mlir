// RUN: spmd-opt %s --print-rules
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x32xf32>) -> tensor<16x4x8xf32> {
  %0 = aten.mm(%x, %w) : tensor<16x32xf32> <dp: S(0)>
  %1 = aten.add.Tensor(%0, %0) {alpha = 2} : tensor<16x32xf32>
  %2 = aten._softmax(%1) {dim = 1, half_to_float = false} : tensor<16x32xf32>
  %3 = aten.view(%2) {size = [16, 4, 8]} : tensor<16x4x8xf32>
  %4 = spmd.constraint %3 : tensor<16x4x8xf32> <dp: S(0)>
  %5 = mylib.no_such_op(%4) : tensor<16x4x8xf32>
  return %5 : tensor<16x4x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32>,
// |                 %w: tensor<8x32xf32>) -> tensor<16x4x8xf32> {
// |   %0 = aten.mm(%x, %w) : tensor<16x32xf32> <dp: S(0)> attributes {spmd.rule = "([m, k], [k, n]) -> ([m, n]) {m = 16, k = 8, n = 32} sum {k} multilinear {self, mat2}"}
// |   %1 = aten.add.Tensor(%0, %0) {alpha = 2} : tensor<16x32xf32> attributes {spmd.rule = "([d0, d1], [d0, d1]) -> ([d0, d1]) {d0 = 16, d1 = 32} linear {self, other}"}
// |   %2 = aten._softmax(%1) {dim = 1, half_to_float = false} : tensor<16x32xf32> attributes {spmd.rule = "([d0, d1]) -> ([d0, d1]) {d0 = 16, d1 = 32} expand {d1}"}
// |   %3 = aten.view(%2) {size = [16, 4, 8]} : tensor<16x4x8xf32> attributes {spmd.rule = "([r0, (r1 r2)]) -> ([r0, r1, r2]) {r0 = 16, r1 = 4, r2 = 8} moves {self}"}
// |   %4 = spmd.constraint %3 : tensor<16x4x8xf32> <dp: S(0)>
// |   %5 = mylib.no_such_op(%4) : tensor<16x4x8xf32> attributes {spmd.rule = "none: replicated only"}
// |   return %5 : tensor<16x4x8xf32>
// | }
