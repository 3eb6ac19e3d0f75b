// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%q: tensor<2x2x3x5x4xf32>, %k: tensor<2x2x4x5xf32>) -> tensor<2x2x3x5x5xf32> {
  %queries = aten.reshape(%q) {shape = [12, 5, 4]} : tensor<12x5x4xf32>
  %unsqueeze = aten.unsqueeze(%k) {dim = 2} : tensor<2x2x1x4x5xf32>
  %expand = aten.expand(%unsqueeze) {size = [2, 2, 3, 4, 5]} : tensor<2x2x3x4x5xf32>
  %keys = aten.reshape(%expand) {shape = [12, 4, 5]} : tensor<12x4x5xf32>
  %bmm = aten.bmm(%queries, %keys) : tensor<12x5x5xf32>
  %scores = aten.view(%bmm) {size = [2, 2, 3, 5, 5]} : tensor<2x2x3x5x5xf32>
  return %scores : tensor<2x2x3x5x5xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%q: tensor<2x2x3x5x4xf32>,
// |                 %k: tensor<2x2x4x5xf32>) -> tensor<2x2x3x5x5xf32> {
// |   %scores = aten.einsum([%q, %k]) {equation = "abcde,abef->abcdf"} : tensor<2x2x3x5x5xf32>
// |   return %scores : tensor<2x2x3x5x5xf32>
// | }
