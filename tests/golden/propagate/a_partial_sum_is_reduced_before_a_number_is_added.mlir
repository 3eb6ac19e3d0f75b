// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <tp = 4>

// Each rank would add it: sum(x + 1) is sum(x) + 4. Zero may be added, and a factor commutes with the sum.
func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %y: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  %0 = aten.mm(%x, %w) : tensor<16x16xf32>
  %1 = aten.add.Scalar(%0) {other = 1} : tensor<16x16xf32>
  %2 = aten.mm(%y, %w) : tensor<16x16xf32>
  %3 = aten.add.Scalar(%2) {other = 0} : tensor<16x16xf32>
  %4 = aten.mul.Scalar(%3) {other = 3} : tensor<16x16xf32>
  return %1, %4 : tensor<16x16xf32>, tensor<16x16xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %y: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %w: tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.mm(%x, %w) : tensor<16x16xf32> <tp: P(sum)>
// |   %1 = aten.add.Scalar(%0) {other = 1} : tensor<16x16xf32> <> needs (<>)
// |   %2 = aten.mm(%y, %w) : tensor<16x16xf32> <tp: P(sum)>
// |   %3 = aten.add.Scalar(%2) {other = 0} : tensor<16x16xf32> <tp: P(sum)>
// |   %4 = aten.mul.Scalar(%3) {other = 3} : tensor<16x16xf32> <tp: P(sum)>
// |   return %1, %4 : tensor<16x16xf32>, tensor<16x16xf32>
// | }
