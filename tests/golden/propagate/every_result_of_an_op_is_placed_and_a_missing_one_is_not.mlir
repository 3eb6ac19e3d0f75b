// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%dy: tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %x: tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %mean: tensor<32x16x1xf32>, %rstd: tensor<32x16x1xf32>, %w: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<32x8x64xf32>) {
  %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, %mean, %rstd, %w, %b) {normalized_shape = [64], output_mask = [true, true, false]} : tensor<32x16x64xf32>, tensor<64xf32>, none
  %0, %1 = aten.split.Tensor(%x) {dim = 1, split_size = 8} : tensor<32x8x64xf32>, tensor<32x8x64xf32>
  return %dx, %dw, %1 : tensor<32x16x64xf32>, tensor<64xf32>, tensor<32x8x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @f(%dy: tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %x: tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %mean: tensor<32x16x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %rstd: tensor<32x16x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %w: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %b: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<32x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<32x8x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, %mean, %rstd, %w, %b) {normalized_shape = [64], output_mask = [true, true, false]} : tensor<32x16x64xf32> <dp: S(0)>, tensor<64xf32> <dp: P(sum)>, none
// |   %0, %1 = aten.split.Tensor(%x) {dim = 1, split_size = 8} : tensor<32x8x64xf32> <dp: S(0)>, tensor<32x8x64xf32> <dp: S(0)>
// |   return %dx, %dw, %1 : tensor<32x16x64xf32>, tensor<64xf32>, tensor<32x8x64xf32>
// | }
