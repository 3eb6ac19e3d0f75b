// RUN: spmd-opt %s

spmd.mesh @mesh <a = 2, b = 2, c = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, c: S(1), b: P(sum), a: S(0)>}) -> tensor<8x8xf32> {
  %0 = aten.neg(%x) : tensor<8x8xf32> <c: S(1), b: P(sum), a: S(0)>
  %1 = aten.neg(%0) : tensor<8x8xf32> <b: S(0), a: S(0), c: R>
  %2 = aten.neg(%1) : tensor<8x8xf32> <a: S(0), b: S(0)>
  %3 = aten.neg(%2) : tensor<8x8xf32> <>
  %4 = aten.neg(%3) : tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <a = 2, b = 2, c = 2>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), c: S(1), b: P(sum)>}) -> tensor<8x8xf32> {
// |   %0 = aten.neg(%x) : tensor<8x8xf32> <a: S(0), c: S(1), b: P(sum)>
// |   %1 = aten.neg(%0) : tensor<8x8xf32> <b: S(0), a: S(0)>
// |   %2 = aten.neg(%1) : tensor<8x8xf32> <a: S(0), b: S(0)>
// |   %3 = aten.neg(%2) : tensor<8x8xf32> <>
// |   %4 = aten.neg(%3) : tensor<8x8xf32>
// |   return %4 : tensor<8x8xf32>
// | }
