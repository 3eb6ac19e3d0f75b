// RUN: spmd-opt %s --fold-views
spmd.mesh @mesh <dp = 2, tp = 2>

spmd.sizes {s0 = 64 in 2..}

func.func @main(%x: tensor<64x64xf32, #spmd.dims<s0, 64>>, %w: tensor<64x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x8x4xf32> {
  %0 = aten.sym_size.int(%x, 0) : !spmd.size<s0>
  %1 = aten.reshape(%x) {shape = [64, %0]} : tensor<64x[s0]xf32>
  %2 = aten.mm(%1, %w) : tensor<64x4xf32>
  %3 = aten.reshape(%2) {shape = [8, 8, 4]} : tensor<8x8x4xf32>
  return %3 : tensor<8x8x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | spmd.sizes {s0 = 64 in 2..}
// |
// | func.func @main(%x: tensor<64x64xf32, #spmd.dims<s0, 64>>,
// |                 %w: tensor<64x4xf32, #spmd.dims<s0, 4>>) -> tensor<8x8x4xf32> {
// |   %0 = aten.sym_size.int(%x, 0) : !spmd.size<s0>
// |   %1 = aten.reshape(%x) {shape = [64, %0]} : tensor<64x[s0]xf32>
// |   %_1.reshape = aten.reshape(%1) {shape = [8, 8, %0]} : tensor<8x8x[s0]xf32>
// |   %3 = aten.einsum([%_1.reshape, %w]) {equation = "abc,cd->abd"} : tensor<8x8x4xf32>
// |   return %3 : tensor<8x8x4xf32>
// | }
