// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 4>

func.func @step(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %dy: tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %y = aten.mm(%x, %w) : tensor<64x16xf32>
  %t = aten.t(%x) : tensor<32x64xf32>
  %dw = aten.mm(%t, %dy) : tensor<32x16xf32>
  return %y, %dw : tensor<64x16xf32>, tensor<32x16xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @step(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %w: tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %dy: tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x16xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<32x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided"} {
// |   %y = aten.mm(%x, %w) : tensor<64x16xf32> <dp: S(0)>
// |   %t = aten.t(%x) : tensor<32x64xf32> <dp: S(1)>
// |   %dw = aten.mm(%t, %dy) : tensor<32x16xf32> <dp: P(sum)>
// |   return %y, %dw : tensor<64x16xf32>, tensor<32x16xf32>
// | }
