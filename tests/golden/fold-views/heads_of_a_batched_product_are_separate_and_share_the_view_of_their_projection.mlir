// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<2x6x8xf32>, %k: tensor<2x6x8xf32>, %v: tensor<2x4x6x2xf32>) -> (tensor<2x4x6x6xf32>, tensor<2x4x6x2xf32>) {
  %heads = aten.view(%x) {size = [2, 6, 4, 2]} : tensor<2x6x4x2xf32>
  %q = aten.transpose.int(%heads) {dim0 = 1, dim1 = 2} : tensor<2x4x6x2xf32>
  %expand = aten.expand(%q) {size = [2, 4, 6, 2]} : tensor<2x4x6x2xf32>
  %queries = aten.reshape(%expand) {shape = [8, 6, 2]} : tensor<8x6x2xf32>
  %others = aten.view(%k) {size = [2, 6, 4, 2]} : tensor<2x6x4x2xf32>
  %permute = aten.permute(%others) {dims = [0, 2, 3, 1]} : tensor<2x4x2x6xf32>
  %keys = aten.reshape(%permute) {shape = [8, 2, 6]} : tensor<8x2x6xf32>
  %bmm = aten.bmm(%queries, %keys) : tensor<8x6x6xf32>
  %scores = aten.view(%bmm) {size = [2, 4, 6, 6]} : tensor<2x4x6x6xf32>
  %flat = aten.reshape(%scores) {shape = [8, 6, 6]} : tensor<8x6x6xf32>
  %values = aten.view(%v) {size = [8, 6, 2]} : tensor<8x6x2xf32>
  %bmm_1 = aten.bmm(%flat, %values) : tensor<8x6x2xf32>
  %out = aten.view(%bmm_1) {size = [2, 4, 6, 2]} : tensor<2x4x6x2xf32>
  return %scores, %out : tensor<2x4x6x6xf32>, tensor<2x4x6x2xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<2x6x8xf32>,
// |                 %k: tensor<2x6x8xf32>,
// |                 %v: tensor<2x4x6x2xf32>) -> (tensor<2x4x6x6xf32>, tensor<2x4x6x2xf32>) {
// |   %x.reshape = aten.reshape(%x) {shape = [2, 6, 4, 2]} : tensor<2x6x4x2xf32>
// |   %k.reshape = aten.reshape(%k) {shape = [2, 6, 4, 2]} : tensor<2x6x4x2xf32>
// |   %scores = aten.einsum([%x.reshape, %k.reshape]) {equation = "abcd,aecd->acbe"} : tensor<2x4x6x6xf32>
// |   %out = aten.einsum([%scores, %v]) {equation = "abcd,abde->abce"} : tensor<2x4x6x2xf32>
// |   return %scores, %out : tensor<2x4x6x6xf32>, tensor<2x4x6x2xf32>
// | }
