// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<2x6x8xf32>, %w: tensor<4x8xf32>) -> tensor<2x6x4xf32> {
  %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
  %wt = aten.t(%w) : tensor<8x4xf32>
  %product = aten.mm(%rows, %wt) : tensor<12x4xf32>
  %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
  return %y : tensor<2x6x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<2x6x8xf32>,
// |                 %w: tensor<4x8xf32>) -> tensor<2x6x4xf32> {
// |   %y = aten.einsum([%x, %w]) {equation = "abc,dc->abd"} : tensor<2x6x4xf32>
// |   return %y : tensor<2x6x4xf32>
// | }
