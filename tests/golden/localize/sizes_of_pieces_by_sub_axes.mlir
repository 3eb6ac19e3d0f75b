// RUN: --localize

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
             %table: tensor<7x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)2: S(0)>},
             %at: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) {
  %0 = aten.view(%x) {size = [2, 4, 6]} : tensor<2x4x6xf32> <tp(1)2: S(0), tp(2)2: S(1)>
  %1 = aten.embedding(%table, %at) : tensor<4x8xf32> <tp(1)2: S(0), tp(2)2: P(sum)>
  return
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<2x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %table: tensor<?x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)2: S(0)>, spmd.of = #spmd.shapes<{of = [[7, 8]]}>},
// |              %at: tensor<2xi64> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) attributes {spmd.local} {
// |   %0 = aten.view(%x) {size = [1, 2, 6]} : tensor<1x2x6xf32> <tp(1)2: S(0), tp(2)2: S(1)>
// |   %1 = aten.sub.Scalar(%at) {other = offset(7, tp(2)2)} : tensor<2xi64>
// |   %2 = aten.ge.Scalar(%1) {other = 0} : tensor<2xi1>
// |   %3 = aten.lt.Scalar(%1) {other = size(7, tp(2)2)} : tensor<2xi1>
// |   %4 = aten.logical_and(%2, %3) : tensor<2xi1>
// |   %5 = aten.clamp(%1) {max = size(7, tp(2)2) - 1, min = 0} : tensor<2xi64>
// |   %6 = aten.embedding(%table, %5) : tensor<2x8xf32>
// |   %7 = aten.unsqueeze(%4) {dim = -1} : tensor<2x1xi1>
// |   %8 = aten.where.ScalarOther(%7, %6) {other = 0} : tensor<2x8xf32> <tp(1)2: S(0), tp(2)2: P(sum)>
// |   return
// | }
