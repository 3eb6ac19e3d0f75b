// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @split(%x: tensor<4x15xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 3)>},
                 %y: tensor<4x18xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 2)>}) -> (tensor<4x15xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 3)>}) {
  %a, %b, %c = aten.split.Tensor(%x) {split_size = 5, dim = 1} : tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>
  %d, %e = aten.split_with_sizes(%y) {split_sizes = [9, 9], dim = 1} : tensor<4x9xf32>, tensor<4x9xf32>
  %f = aten.mul.Tensor(%d, %e) : tensor<4x9xf32>
  %g = aten.sum.dim_IntList(%f) {dim = [1], keepdim = true} : tensor<4x1xf32>
  %h = aten.mul.Tensor(%a, %g) : tensor<4x5xf32>
  %i = aten.cat([%h, %b, %c]) {dim = -1} : tensor<4x15xf32>
  return %i : tensor<4x15xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @split(%x: tensor<4x?xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 3)>, spmd.of = #spmd.shapes<{of = [[4, 15]]}>},
// |                  %y: tensor<4x?xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 2)>, spmd.of = #spmd.shapes<{of = [[4, 18]]}>}) -> (tensor<4x?xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(1, 3)>}) attributes {spmd.stage = "local", spmd.decided_by = "propagate{topology=flat}"} {
// |   %a, %b, %c = aten.split.Tensor(%x) {dim = 1, split_size = size(5, tp)} : tensor<4x?xf32> <tp: S(1)>, tensor<4x?xf32> <tp: S(1)>, tensor<4x?xf32> <tp: S(1)> of [4, 5], [4, 5], [4, 5] attributes {spmd.form = {op = "aten.split.Tensor", operands = [tensor<4x15xf32>], needs = #spmd.shardings<@mesh, <tp: Strided(1, 3)>>, results = [tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>, <tp: S(1)>, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 1, results = [[0, 0], [0, 1], [0, 2]]}>, arguments = #spmd.arguments<{dim = 1, split_size = 5}>}}
// |   %d, %e = aten.chunk(%y) {chunks = 2, dim = 1} : tensor<4x?xf32> <tp: S(1)>, tensor<4x?xf32> <tp: S(1)> of [4, 9], [4, 9] attributes {spmd.form = {op = "aten.split_with_sizes", operands = [tensor<4x18xf32>], needs = #spmd.shardings<@mesh, <tp: Strided(1, 2)>>, results = [tensor<4x9xf32>, tensor<4x9xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 1, results = [[0, 0], [0, 1]]}>, arguments = #spmd.arguments<{dim = 1, split_sizes = [9, 9]}>}}
// |   %f = aten.mul.Tensor(%d, %e) : tensor<4x?xf32> <tp: S(1)> of [4, 9]
// |   %g = aten.sum.dim_IntList(%f) {dim = [1], keepdim = true} : tensor<4x1xf32> <tp: P(sum)>
// |   %g.reshard = spmd.all_reduce %g on [tp] op sum : tensor<4x1xf32> <>
// |   %h = aten.mul.Tensor(%a, %g.reshard) : tensor<4x?xf32> <tp: S(1)> of [4, 5]
// |   %i = aten.cat([%h, %b, %c]) {dim = -1} : tensor<4x?xf32> <tp: Strided(1, 3)> of [4, 15]
// |   return %i : tensor<4x?xf32>
// | }
