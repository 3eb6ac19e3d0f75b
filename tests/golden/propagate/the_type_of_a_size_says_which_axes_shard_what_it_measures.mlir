// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2, tp = 2>

spmd.sizes {s0 = 8 in 2..64, s1 = 6 in 2..}

func.func @main(%x: tensor<8x6x8xf32, #spmd.dims<s0, s1, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<8x6x4xf32, #spmd.dims<s0, s1, 4>> {
  %n = aten.sym_size.int(%x, 0) : !spmd.size<s0>
  %m = aten.sym_size.int(%x, 1) : !spmd.size<s1>
  %k = operator.mul(%n, %m) : !spmd.size<s0*s1>
  %f = operator.truediv(1, %n) : !spmd.size<1 / s0>
  %1 = aten.view(%x) {size = [%k, 8]} : tensor<[s0*s1]x8xf32>
  %2 = aten.mm(%1, %w) : tensor<[s0*s1]x4xf32>
  %3 = aten.view(%2) {size = [%n, %m, 4]} : tensor<[s0]x[s1]x4xf32>
  %4 = aten.mul.Tensor(%3) {other = %f} : tensor<[s0]x[s1]x4xf32>
  return %4 : tensor<8x6x4xf32, #spmd.dims<s0, s1, 4>>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | spmd.sizes {s0 = 8 in 2..64, s1 = 6 in 2..}
// |
// | func.func @main(%x: tensor<8x6x8xf32, #spmd.dims<s0, s1, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<8x6x4xf32, #spmd.dims<s0, s1, 4>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(2)>}) attributes {spmd.stage = "decided"} {
// |   %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
// |   %m = aten.sym_size.int(%x, 1) : !spmd.size<s1>
// |   %k = operator.mul(%n, %m) : !spmd.size<s0*s1, dp>
// |   %f = operator.truediv(1, %n) : !spmd.size<1 / s0>
// |   %1 = aten.view(%x) {size = [%k, 8]} : tensor<[s0*s1]x8xf32> <dp: S(0)>
// |   %2 = aten.mm(%1, %w) : tensor<[s0*s1]x4xf32> <dp: S(0), tp: S(1)>
// |   %3 = aten.view(%2) {size = [%n, %m, 4]} : tensor<[s0]x[s1]x4xf32> <dp: S(0), tp: S(2)>
// |   %4 = aten.mul.Tensor(%3) {other = %f} : tensor<[s0]x[s1]x4xf32> <dp: S(0), tp: S(2)>
// |   return %4 : tensor<8x6x4xf32, #spmd.dims<s0, s1, 4>>
// | }
