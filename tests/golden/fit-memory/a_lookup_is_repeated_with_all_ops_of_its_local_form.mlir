// RUN: spmd-opt %s --localize --fit-memory="budget=2100" --verify-spmd
spmd.mesh @mesh <tp = 2>

// Rows of the table are sharded, so that the lookup is several ops on a rank; what it gives waits while %wide needs room.
func.func @step(%table: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %index: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  %rows = aten.embedding(%table, %index) : tensor<4x32xf32> <tp: P(sum)>
  %y = aten.neg(%rows) : tensor<4x32xf32> <tp: P(sum)>
  %wide = aten.cat([%y, %y]) {dim = 1} : tensor<4x64xf32> <tp: P(sum)>
  %part = aten.slice.Tensor(%wide) {dim = 1, end = 32, start = 0, step = 1} : tensor<4x32xf32> <tp: P(sum)>
  %dense = aten.clone(%part) : tensor<4x32xf32> <tp: P(sum)>
  %dx = aten.add.Tensor(%dense, %rows) : tensor<4x32xf32> <tp: P(sum)>
  return %dx : tensor<4x32xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @step(%table: tensor<4x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %index: tensor<4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) attributes {spmd.stage = "local"} {
// |   %rows.local_index = spmd.local_index %index {of = shard(8, tp)} : tensor<4xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<8x32xf32>, tensor<4xi64>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <>>, results = [tensor<4x32xf32>], made = #spmd.shardings<@mesh, <tp: P(sum)>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}}
// |   %rows.clamp = aten.clamp(%rows.local_index) {min = 0} : tensor<4xi64>
// |   %rows.embedding = aten.embedding(%table, %rows.clamp) : tensor<4x32xf32>
// |   %rows.ge = aten.ge.Scalar(%rows.local_index) {other = 0} : tensor<4xi1>
// |   %rows.unsqueeze = aten.unsqueeze(%rows.ge) {dim = -1} : tensor<4x1xi1>
// |   %rows = aten.where.ScalarOther(%rows.unsqueeze, %rows.embedding) {other = 0} : tensor<4x32xf32> <tp: P(sum)>
// |   %y = aten.neg(%rows) : tensor<4x32xf32> <tp: P(sum)>
// |   %wide = aten.cat([%y, %y]) {dim = 1} : tensor<4x64xf32> <tp: P(sum)>
// |   %part = aten.slice.Tensor(%wide) {dim = 1, end = 32, start = 0, step = 1} : tensor<4x32xf32> <tp: P(sum)>
// |   %dense = aten.clone(%part) : tensor<4x32xf32> <tp: P(sum)>
// |   %rows.again = spmd.local_index %index {of = shard(8, tp)} : tensor<4xi64> attributes {spmd.form = {op = "aten.embedding", operands = [tensor<8x32xf32>, tensor<4xi64>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <>>, results = [tensor<4x32xf32>], made = #spmd.shardings<@mesh, <tp: P(sum)>>, places = #spmd.arguments<{operands = [[2, 0], [0, 0]], ops = 6, results = [[5, 0]]}>}, spmd.recomputes = "rows.local_index"}
// |   %rows.again_1 = aten.clamp(%rows.again) {min = 0} : tensor<4xi64> attributes {spmd.recomputes = "rows.clamp"}
// |   %rows.again_2 = aten.embedding(%table, %rows.again_1) : tensor<4x32xf32> attributes {spmd.recomputes = "rows.embedding"}
// |   %rows.again_3 = aten.ge.Scalar(%rows.again) {other = 0} : tensor<4xi1> attributes {spmd.recomputes = "rows.ge"}
// |   %rows.again_4 = aten.unsqueeze(%rows.again_3) {dim = -1} : tensor<4x1xi1> attributes {spmd.recomputes = "rows.unsqueeze"}
// |   %rows.again_5 = aten.where.ScalarOther(%rows.again_4, %rows.again_2) {other = 0} : tensor<4x32xf32> <tp: P(sum)> attributes {spmd.recomputes = "rows"}
// |   %dx = aten.add.Tensor(%dense, %rows.again_5) : tensor<4x32xf32> <tp: P(sum)>
// |   return %dx : tensor<4x32xf32>
// | }
