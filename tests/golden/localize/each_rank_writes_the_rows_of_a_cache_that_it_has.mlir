// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard --localize --verify-spmd
spmd.mesh @mesh <tp = 2>

func.func @heads(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}, %v: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %q: tensor<4x1x4x4xf32>, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x1x4x4xf32>, tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation", spmd.like = "k", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}, tensor<4x8x2x4xf32> {spmd.name = "v", spmd.kind = "mutation", spmd.like = "v"}) {
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  %v.1 = cache.write(%v, %rows, %positions) : tensor<4x8x2x4xf32>
  %y = cache.attend(%q, %k.1, %v.1, %positions) : tensor<4x1x4x4xf32>
  return %y, %k.1, %v.1 : tensor<4x1x4x4xf32>, tensor<4x8x2x4xf32>, tensor<4x8x2x4xf32>
}

func.func @pages(%paged: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %rows: tensor<2x1x2x4xf32>, %positions: tensor<2x1xi64>, %table: tensor<2x2xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "paged", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %paged.1 = cache.write(%paged, %rows, %positions, %table) : tensor<4x8x2x4xf32>
  return %paged.1 : tensor<4x8x2x4xf32>
}

func.func @rows(%split: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "split", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %split.1 = cache.write(%split, %rows, %positions) : tensor<4x8x2x4xf32>
  return %split.1 : tensor<4x8x2x4xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @heads(%k: tensor<4x8x1x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>},
// |                  %v: tensor<4x8x1x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>},
// |                  %q: tensor<4x1x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>},
// |                  %rows: tensor<4x1x1x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>},
// |                  %positions: tensor<4x1xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x1x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}, tensor<4x8x1x4xf32> {spmd.name = "k", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}, tensor<4x8x1x4xf32> {spmd.name = "v", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}) attributes {spmd.stage = "local", spmd.decided_by = "propagate{topology=flat}"} {
// |   %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x1x4xf32> <tp: S(2)>
// |   %v.1 = cache.write(%v, %rows, %positions) : tensor<4x8x1x4xf32> <tp: S(2)>
// |   %y = cache.attend(%q, %k.1, %v.1, %positions) : tensor<4x1x2x4xf32> <tp: S(2)>
// |   return %y, %k.1, %v.1 : tensor<4x1x2x4xf32>, tensor<4x8x1x4xf32>, tensor<4x8x1x4xf32>
// | }
// |
// | func.func @pages(%paged: tensor<2x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %rows: tensor<2x1x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                  %positions: tensor<2x1xi64> {spmd.sharding = #spmd.sharding<@mesh>},
// |                  %table: tensor<2x2xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<2x8x2x4xf32> {spmd.name = "paged", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "local", spmd.decided_by = "propagate{topology=flat}"} {
// |   %paged.local_index = spmd.local_index %table {of = shard(4, tp)} : tensor<2x2xi64> attributes {spmd.form = {op = "cache.write", operands = [tensor<4x8x2x4xf32>, tensor<2x1x2x4xf32>, tensor<2x1xi64>, tensor<2x2xi64>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <>, <>, <>>, results = [tensor<4x8x2x4xf32>], made = #spmd.shardings<@mesh, <tp: S(0)>>, places = #spmd.arguments<{operands = [[1, 0], [1, 1], [1, 2], [0, 0]], ops = 2, results = [[1, 0]]}>}}
// |   %paged.1 = cache.write(%paged, %rows, %positions, %paged.local_index) : tensor<2x8x2x4xf32> <tp: S(0)>
// |   return %paged.1 : tensor<2x8x2x4xf32>
// | }
// |
// | func.func @rows(%split: tensor<4x4x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %rows: tensor<4x1x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %positions: tensor<4x1xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x4x2x4xf32> {spmd.name = "split", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "local", spmd.decided_by = "propagate{topology=flat}"} {
// |   %split.lt = aten.lt.Scalar(%positions) {other = 8} : tensor<4x1xi1> attributes {spmd.form = {op = "cache.write", operands = [tensor<4x8x2x4xf32>, tensor<4x1x2x4xf32>, tensor<4x1xi64>], needs = #spmd.shardings<@mesh, <tp: S(1)>, <>, <>>, results = [tensor<4x8x2x4xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[3, 0], [3, 1], [0, 0]], ops = 4, results = [[3, 0]]}>}}
// |   %split.where = aten.where.ScalarOther(%split.lt, %positions) {other = -1} : tensor<4x1xi64>
// |   %split.local_index = spmd.local_index %split.where {of = shard(8, tp)} : tensor<4x1xi64>
// |   %split.1 = cache.write(%split, %rows, %split.local_index, none) : tensor<4x4x2x4xf32> <tp: S(1)>
// |   return %split.1 : tensor<4x4x2x4xf32>
// | }
