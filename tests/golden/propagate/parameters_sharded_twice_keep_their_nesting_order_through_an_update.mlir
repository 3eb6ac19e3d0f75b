// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <dp = 2, tp = 2>

// Rows are cut by tp, then by dp; the gradient is wanted in the same order, so that nothing is permuted.
func.func @adam(%w: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}, %m: tensor<64x32xf32>, %x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}, %dy: tensor<16x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}, tensor<64x32xf32>) {
  %0 = aten.t(%x) : tensor<64x16xf32>
  %1 = aten.mm(%0, %dy) : tensor<64x32xf32>
  %2 = aten.lerp.Scalar(%m, %1) {weight = 0.1} : tensor<64x32xf32>
  %3 = aten.sqrt(%2) : tensor<64x32xf32>
  %4 = aten.div.Tensor(%2, %3) : tensor<64x32xf32>
  %5 = aten.sub.Tensor(%w, %4) {alpha = 0.001} : tensor<64x32xf32>
  return %5, %2 : tensor<64x32xf32>, tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @adam(%w: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>},
// |                 %m: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>},
// |                 %x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |                 %dy: tensor<16x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}, tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.t(%x) : tensor<64x16xf32> <tp: S(0), dp: S(1)>
// |   %1 = aten.mm(%0, %dy) : tensor<64x32xf32> <tp: S(0), dp: P(sum)>
// |   %_1.reshard = spmd.reshard %1 : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   %2 = aten.lerp.Scalar(%m, %_1.reshard) {weight = 0.1} : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   %3 = aten.sqrt(%2) : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   %4 = aten.div.Tensor(%2, %3) : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   %5 = aten.sub.Tensor(%w, %4) {alpha = 0.001} : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   return %5, %2 : tensor<64x32xf32>, tensor<64x32xf32>
// | }
