// RUN: spmd-opt %s --localize

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
// |              %at: tensor<2xi64> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.view(%x) {size = [1, 2, 6]} : tensor<1x2x6xf32> <tp(1)2: S(0), tp(2)2: S(1)>
// |   %_1.local_index = spmd.local_index %at {of = shard(7, tp(2)2)} : tensor<2xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<7x8xf32>, tensor<4xi64>], needs = #spmd.shardings<@mesh, <tp(2)2: S(0)>, <tp(1)2: S(0)>>, results = [tensor<4x8xf32>], made = #spmd.shardings<@mesh, <tp(1)2: S(0), tp(2)2: P(sum)>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}}
// |   %_1.clamp = aten.clamp(%_1.local_index) {min = 0} : tensor<2xi64>
// |   %_1.embedding = aten.embedding(%table, %_1.clamp) : tensor<2x8xf32>
// |   %_1.ge = aten.ge.Scalar(%_1.local_index) {other = 0} : tensor<2xi1>
// |   %_1.unsqueeze = aten.unsqueeze(%_1.ge) {dim = -1} : tensor<2x1xi1>
// |   %1 = aten.where.ScalarOther(%_1.unsqueeze, %_1.embedding) {other = 0} : tensor<2x8xf32> <tp(1)2: S(0), tp(2)2: P(sum)>
// |   return
// | }
