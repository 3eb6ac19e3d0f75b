// RUN: spmd-opt %s --propagate --expand --insert-reshard --lower-reshard
// Exchanging the tensor would send twice the bytes of the two reductions.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4194304x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4194304x32xf32> {
  %0 = aten._softmax(%x) {dim = -1, half_to_float = false} : tensor<4194304x32xf32>
  return %0 : tensor<4194304x32xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4194304x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4194304x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %_0.amax = aten.amax(%x) {dim = [-1], keepdim = true} : tensor<4194304x1xf32> <tp: P(max)> attributes {spmd.expansion = {op = "aten._softmax", operands = [tensor<4194304x32xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<4194304x32xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 5, results = [[4, 0]]}>, arguments = #spmd.arguments<{dim = -1, half_to_float = false}>}}
// |   %_0.reshard = spmd.all_reduce %_0.amax on [tp] op max : tensor<4194304x1xf32> <>
// |   %_0.sub = aten.sub.Tensor(%x, %_0.reshard) : tensor<4194304x32xf32> <tp: S(1)>
// |   %_0.exp = aten.exp(%_0.sub) : tensor<4194304x32xf32> <tp: S(1)>
// |   %_0.sum = aten.sum.dim_IntList(%_0.exp) {dim = [-1], keepdim = true} : tensor<4194304x1xf32> <tp: P(sum)>
// |   %_0.reshard_1 = spmd.all_reduce %_0.sum on [tp] op sum : tensor<4194304x1xf32> <>
// |   %0 = aten.div.Tensor(%_0.exp, %_0.reshard_1) : tensor<4194304x32xf32> <tp: S(1)>
// |   return %0 : tensor<4194304x32xf32>
// | }
