// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

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
// |              %i: tensor<5xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<5x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "local"} {
// |   %_0.local_index = spmd.local_index %i {of = shard(8, tp)} : tensor<5xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<8x6xf32>, tensor<5xi64>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <>>, results = [tensor<5x6xf32>], made = #spmd.shardings<@mesh, <tp: Masked>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}}
// |   %_0.clamp = aten.clamp(%_0.local_index) {min = 0} : tensor<5xi64>
// |   %_0.embedding = aten.embedding(%w, %_0.clamp) : tensor<5x6xf32>
// |   %_0.ge = aten.ge.Scalar(%_0.local_index) {other = 0} : tensor<5xi1>
// |   %_0.unsqueeze = aten.unsqueeze(%_0.ge) {dim = -1} : tensor<5x1xi1>
// |   %0 = aten.where.ScalarOther(%_0.unsqueeze, %_0.embedding) {other = 0} : tensor<5x6xf32> <tp: Masked>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<5x6xf32> <tp: Masked>
// |   %_1.reshard = spmd.reduce_scatter %1 on [tp] dim 1 op Masked : tensor<5x3xf32> <tp: S(1)>
// |   return %_1.reshard : tensor<5x3xf32>
// | }
