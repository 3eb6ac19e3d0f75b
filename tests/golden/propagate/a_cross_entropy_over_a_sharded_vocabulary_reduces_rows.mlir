// RUN: spmd-opt %s --propagate --expand --insert-reshard --lower-reshard
// The logits are never gathered or exchanged: all that is sent is a number or two for each row.
spmd.mesh @mesh <tp = 4>

func.func @loss(%x: tensor<16384x128256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %y: tensor<16384xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<f32> {
  %0 = aten._log_softmax(%x) {dim = 1, half_to_float = false} : tensor<16384x128256xf32>
  %1, %2 = aten.nll_loss_forward(%0, %y, none) {ignore_index = -100, reduction = 1} : tensor<f32>, tensor<f32>
  return %1 : tensor<f32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @loss(%x: tensor<16384x128256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                 %y: tensor<16384xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<f32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "lowered"} {
// |   %_0.amax = aten.amax(%x) {dim = [1], keepdim = true} : tensor<16384x1xf32> <tp: P(max)> attributes {spmd.expansion = {op = "aten._log_softmax", operands = [tensor<16384x128256xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<16384x128256xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 6, results = [[5, 0]]}>, arguments = #spmd.arguments<{dim = 1, half_to_float = false}>}}
// |   %_0.reshard = spmd.all_reduce %_0.amax on [tp] op max : tensor<16384x1xf32> <>
// |   %_0.sub = aten.sub.Tensor(%x, %_0.reshard) : tensor<16384x128256xf32> <tp: S(1)>
// |   %_0.exp = aten.exp(%_0.sub) : tensor<16384x128256xf32> <tp: S(1)>
// |   %_0.sum = aten.sum.dim_IntList(%_0.exp) {dim = [1], keepdim = true} : tensor<16384x1xf32> <tp: P(sum)>
// |   %_0.reshard_1 = spmd.all_reduce %_0.sum on [tp] op sum : tensor<16384x1xf32> <>
// |   %_0.log = aten.log(%_0.reshard_1) : tensor<16384x1xf32> <>
// |   %0 = aten.sub.Tensor(%_0.sub, %_0.log) : tensor<16384x128256xf32> <tp: S(1)>
// |   %_1.nll_loss_forward, %_1.nll_loss_forward_1 = aten.nll_loss_forward(%0, %y, none) {ignore_index = -100, reduction = 2} : tensor<f32> <tp: P(sum)>, tensor<f32> <tp: P(sum)> attributes {spmd.expansion = {op = "aten.nll_loss_forward", operands = [tensor<16384x128256xf32>, tensor<16384xi64>], needs = #spmd.shardings<@mesh, <tp: S(1)>, <>>, results = [tensor<f32>, tensor<f32>], made = #spmd.shardings<@mesh, <tp: P(sum)>, <>>, places = #spmd.arguments<{operands = [[0, 0], [0, 1]], ops = 5, results = [[4, 0], [3, 0]]}>, arguments = #spmd.arguments<{ignore_index = -100, reduction = 1}>, structure = #spmd.structure<{slots = [1, 1, 0]}>}}
// |   %_1.ne = aten.ne.Scalar(%y) {other = -100} : tensor<16384xi1> <>
// |   %_1.sum = aten.sum(%_1.ne) : tensor<i64> <>
// |   %2 = aten._to_copy(%_1.sum) {dtype = f32} : tensor<f32> <>
// |   %1 = aten.div.Tensor(%_1.nll_loss_forward, %2) : tensor<f32> <tp: P(sum)>
// |   %_1.reshard = spmd.all_reduce %1 on [tp] op sum : tensor<f32> <>
// |   return %_1.reshard : tensor<f32>
// | }
