// RUN: spmd-opt %s --localize
spmd.mesh @mesh <dp = 2, tp = 3>

func.func @main() -> tensor<12xi64> {
  %0 = aten.arange() {dtype = i64, end = 12} : tensor<12xi64> <tp: S(0), dp: S(0)>
  return %0 : tensor<12xi64>
}

// | spmd.mesh @mesh <dp = 2, tp = 3>
// |
// | func.func @main() -> tensor<2xi64> attributes {spmd.stage = "local"} {
// |   %0 = spmd.positions {of = shard(12, tp, dp)} : tensor<2xi64> <tp: S(0), dp: S(0)> attributes {spmd.form = {op = "aten.arange", operands = [], needs = #spmd.shardings<@mesh>, results = [tensor<12xi64>], made = #spmd.shardings<@mesh, <tp: S(0), dp: S(0)>>, places = #spmd.arguments<{operands = [], ops = 1, results = [[0, 0]]}>, arguments = #spmd.arguments<{dtype = i64, end = 12}>}}
// |   return %0 : tensor<2xi64>
// | }
