// RUN: spmd-opt %s --split-input-file --propagate="topology=flat" --expand
spmd.mesh @mesh <tp = 4>

func.func @softmax(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32>
  return %0 : tensor<64x4096xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @softmax(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %_0.amax = aten.amax(%x) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(max)> attributes {spmd.expansion = {op = "aten._softmax", operands = [tensor<64x4096xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<64x4096xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 5, results = [[4, 0]]}>, arguments = #spmd.arguments<{dim = 1, half_to_float = false}>}}
// |   %_0.sub = aten.sub.Tensor(%x, %_0.amax) : tensor<64x4096xf32> <tp: S(1)> needs (_, <>)
// |   %_0.exp = aten.exp(%_0.sub) : tensor<64x4096xf32> <tp: S(1)>
// |   %_0.sum = aten.sum.dim_IntList(%_0.exp) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(sum)>
// |   %0 = aten.div.Tensor(%_0.exp, %_0.sum) : tensor<64x4096xf32> <tp: S(1)> needs (_, <>)
// |   return %0 : tensor<64x4096xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

func.func @logsumexp(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.logsumexp(%x) {dim = [1]} : tensor<64xf32>
  return %0 : tensor<64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @logsumexp(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %_0.amax = aten.amax(%x) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(max)> attributes {spmd.expansion = {op = "aten.logsumexp", operands = [tensor<64x4096xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<64xf32>], made = #spmd.shardings<@mesh, <>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 9, results = [[8, 0]]}>, arguments = #spmd.arguments<{dim = [1]}>}}
// |   %_0.isinf = aten.isinf(%_0.amax) : tensor<64x1xi1> <> needs (<>)
// |   %_0.masked_fill = aten.masked_fill.Scalar(%_0.amax, %_0.isinf) {value = 0} : tensor<64x1xf32> <> needs (<>, _)
// |   %_0.sub = aten.sub.Tensor(%x, %_0.masked_fill) : tensor<64x4096xf32> <tp: S(1)>
// |   %_0.exp = aten.exp(%_0.sub) : tensor<64x4096xf32> <tp: S(1)>
// |   %_0.sum = aten.sum.dim_IntList(%_0.exp) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(sum)>
// |   %_0.log = aten.log(%_0.sum) : tensor<64x1xf32> <> needs (<>)
// |   %_0.add = aten.add.Tensor(%_0.log, %_0.masked_fill) : tensor<64x1xf32> <>
// |   %0 = aten.amax(%_0.add) {dim = [1], keepdim = false} : tensor<64xf32> <>
// |   return %0 : tensor<64xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

func.func @mean(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mean.dim(%x) {dim = [1]} : tensor<64xf32>
  return %0 : tensor<64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @mean(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %_0.sum = aten.sum.dim_IntList(%x) {dim = [1], keepdim = false} : tensor<64xf32> <tp: P(sum)> attributes {spmd.expansion = {op = "aten.mean.dim", operands = [tensor<64x4096xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>>, results = [tensor<64xf32>], made = #spmd.shardings<@mesh, <tp: P(sum)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 2, results = [[1, 0]]}>, arguments = #spmd.arguments<{dim = [1]}>}}
// |   %0 = aten.div.Scalar(%_0.sum) {other = 4096} : tensor<64xf32> <tp: P(sum)>
// |   return %0 : tensor<64xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Along a dimension that is whole nothing is replaced.
func.func @rows(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32>
  return %0 : tensor<64x4096xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @rows(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32> <tp: S(0)>
// |   return %0 : tensor<64x4096xf32>
// | }
