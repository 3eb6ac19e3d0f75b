// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<2x6x8xf32>, %w: tensor<8x4xf32>) -> (tensor<2x6x4xf32>, tensor<12x8xf32>, tensor<12x4xf32>) {
  %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
  %product = aten.mm(%rows, %w) : tensor<12x4xf32>
  %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
  %abs = aten.abs(%rows) : tensor<12x8xf32>
  %twice = aten.mm(%rows, %w) : tensor<12x4xf32>
  %exp = aten.exp(%twice) : tensor<12x4xf32>
  return %y, %abs, %exp : tensor<2x6x4xf32>, tensor<12x8xf32>, tensor<12x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<2x6x8xf32>,
// |                 %w: tensor<8x4xf32>) -> (tensor<2x6x4xf32>, tensor<12x8xf32>, tensor<12x4xf32>) {
// |   %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
// |   %y = aten.einsum([%x, %w]) {equation = "abc,cd->abd"} : tensor<2x6x4xf32>
// |   %abs = aten.abs(%rows) : tensor<12x8xf32>
// |   %twice.einsum = aten.einsum([%x, %w]) {equation = "abc,cd->abd"} : tensor<2x6x4xf32>
// |   %twice = aten.reshape(%twice.einsum) {shape = [12, 4]} : tensor<12x4xf32>
// |   %exp = aten.exp(%twice) : tensor<12x4xf32>
// |   return %y, %abs, %exp : tensor<2x6x4xf32>, tensor<12x8xf32>, tensor<12x4xf32>
// | }
