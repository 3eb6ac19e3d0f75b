// RUN: --propagate --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @f(%w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
             %i: tensor<5xi64> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<5x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten.embedding(%w, %i) : tensor<5x6xf32> <tp: Masked>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<5x6xf32> <tp: Masked>
  return %1 : tensor<5x6xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %i: tensor<5xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<5x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.local} {
// |   %0 = aten.sub.Scalar(%i) {other = offset(8, tp)} : tensor<5xi64>
// |   %1 = aten.ge.Scalar(%0) {other = 0} : tensor<5xi1>
// |   %2 = aten.lt.Scalar(%0) {other = 4} : tensor<5xi1>
// |   %3 = aten.logical_and(%1, %2) : tensor<5xi1>
// |   %4 = aten.clamp(%0) {max = 3, min = 0} : tensor<5xi64>
// |   %5 = aten.embedding(%w, %4) : tensor<5x6xf32>
// |   %6 = aten.unsqueeze(%3) {dim = -1} : tensor<5x1xi1>
// |   %7 = aten.where.ScalarOther(%6, %5) {other = 0} : tensor<5x6xf32> <tp: Masked>
// |   %8 = aten.gelu(%7) {approximate = "none"} : tensor<5x6xf32> <tp: Masked>
// |   %9 = spmd.reduce_scatter %8 on [tp] dim 1 op Masked : tensor<5x3xf32> <tp: S(1)>
// |   return %9 : tensor<5x3xf32>
// | }
