// RUN: spmd-opt %s --localize
spmd.mesh @mesh <dp = 2, tp = 3>

func.func @main(%x: tensor<7x12xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<7x6x2xf32> {
  %0 = aten.view(%x) {size = [7, 6, 2]} : tensor<7x6x2xf32> <dp: S(0), tp: S(1)>
  %1 = aten.full() {dtype = f32, fill_value = 1.0, size = [7, 6, 1]} : tensor<7x6x1xf32> <dp: S(0), tp: S(1)>
  %2 = aten.mul.Tensor(%0, %1) : tensor<7x6x2xf32> <dp: S(0), tp: S(1)>
  return %2 : tensor<7x6x2xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 3>
// |
// | func.func @main(%x: tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>, spmd.of = #spmd.shapes<{of = [[7, 12]]}>}) -> tensor<?x2x2xf32> attributes {spmd.stage = "local"} {
// |   %0 = aten.view(%x) {size = [size(7, dp), 2, 2]} : tensor<?x2x2xf32> <dp: S(0), tp: S(1)> of [7, 6, 2]
// |   %1 = aten.full() {dtype = f32, fill_value = 1.0, size = [size(7, dp), 2, 1]} : tensor<?x2x1xf32> <dp: S(0), tp: S(1)> of [7, 6, 1]
// |   %2 = aten.mul.Tensor(%0, %1) : tensor<?x2x2xf32> <dp: S(0), tp: S(1)> of [7, 6, 2]
// |   return %2 : tensor<?x2x2xf32>
// | }
