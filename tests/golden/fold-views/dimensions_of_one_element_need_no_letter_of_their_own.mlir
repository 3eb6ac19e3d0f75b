// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<2x1x6x8xf32>, %w: tensor<8x1xf32>) -> tensor<2x6x1xf32> {
  %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
  %product = aten.mm(%rows, %w) : tensor<12x1xf32>
  %y = aten.view(%product) {size = [2, 6, 1]} : tensor<2x6x1xf32>
  return %y : tensor<2x6x1xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<2x1x6x8xf32>,
// |                 %w: tensor<8x1xf32>) -> tensor<2x6x1xf32> {
// |   %y.einsum = aten.einsum([%x, %w]) {equation = "abcd,de->ac"} : tensor<2x6xf32>
// |   %y = aten.reshape(%y.einsum) {shape = [2, 6, 1]} : tensor<2x6x1xf32>
// |   return %y : tensor<2x6x1xf32>
// | }
