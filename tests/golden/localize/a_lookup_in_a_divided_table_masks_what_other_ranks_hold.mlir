// RUN: --localize
spmd.mesh @mesh <tp = 3>

func.func @main(%table: tensor<11x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %ids: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4x5xf32> {
  %0 = aten.embedding(%table, %ids) : tensor<4x5xf32> <tp: P(sum)>
  %1 = spmd.all_reduce %0 on [tp] op sum : tensor<4x5xf32> <>
  return %1 : tensor<4x5xf32>
}

// | spmd.mesh @mesh <tp = 3>
// |
// | func.func @main(%table: tensor<?x5xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.of = #spmd.shapes<{of = [[11, 5]]}>},
// |                 %ids: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<4x5xf32> attributes {spmd.local} {
// |   %0 = aten.sub.Scalar(%ids) {other = offset(11, tp)} : tensor<4xi64>
// |   %1 = aten.ge.Scalar(%0) {other = 0} : tensor<4xi1>
// |   %2 = aten.lt.Scalar(%0) {other = size(11, tp)} : tensor<4xi1>
// |   %3 = aten.logical_and(%1, %2) : tensor<4xi1>
// |   %4 = aten.clamp(%0) {max = size(11, tp) - 1, min = 0} : tensor<4xi64>
// |   %5 = aten.embedding(%table, %4) : tensor<4x5xf32>
// |   %6 = aten.unsqueeze(%3) {dim = -1} : tensor<4x1xi1>
// |   %7 = aten.where.ScalarOther(%6, %5) {other = 0} : tensor<4x5xf32> <tp: P(sum)>
// |   %8 = spmd.all_reduce %7 on [tp] op sum : tensor<4x5xf32> <>
// |   return %8 : tensor<4x5xf32>
// | }
