// RUN: --split-input-file --propagate
spmd.mesh @mesh <tp = 4>

func.func @softmax(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32>
  return %0 : tensor<64x4096xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @logsumexp(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.logsumexp(%x) {dim = [1]} : tensor<64xf32>
  return %0 : tensor<64xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @mean(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mean.dim(%x) {dim = [1]} : tensor<64xf32>
  return %0 : tensor<64xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

// Along a dimension that is whole nothing is replaced.
func.func @rows(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32>
  return %0 : tensor<64x4096xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @softmax(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
// |   %0 = aten.amax(%x) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(max)>
// |   %1 = aten.sub.Tensor(%x, %0) : tensor<64x4096xf32> <tp: S(1)> needs (_, <>)
// |   %2 = aten.exp(%1) : tensor<64x4096xf32> <tp: S(1)>
// |   %3 = aten.sum.dim_IntList(%2) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(sum)>
// |   %4 = aten.div.Tensor(%2, %3) : tensor<64x4096xf32> <tp: S(1)> needs (_, <>)
// |   return %4 : tensor<64x4096xf32>
// | }
// | // -----
// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @logsumexp(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
// |   %0 = aten.amax(%x) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(max)>
// |   %1 = aten.isinf(%0) : tensor<64x1xi1> <> needs (<>)
// |   %2 = aten.masked_fill.Scalar(%0, %1) {value = 0} : tensor<64x1xf32> <> needs (<>, _)
// |   %3 = aten.sub.Tensor(%x, %2) : tensor<64x4096xf32> <tp: S(1)>
// |   %4 = aten.exp(%3) : tensor<64x4096xf32> <tp: S(1)>
// |   %5 = aten.sum.dim_IntList(%4) {dim = [1], keepdim = true} : tensor<64x1xf32> <tp: P(sum)>
// |   %6 = aten.log(%5) : tensor<64x1xf32> <> needs (<>)
// |   %7 = aten.add.Tensor(%6, %2) : tensor<64x1xf32> <>
// |   %8 = aten.amax(%7) {dim = [1], keepdim = false} : tensor<64xf32> <>
// |   return %8 : tensor<64xf32>
// | }
// | // -----
// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @mean(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
// |   %0 = aten.sum.dim_IntList(%x) {dim = [1], keepdim = false} : tensor<64xf32> <tp: P(sum)>
// |   %1 = aten.div.Scalar(%0) {other = 4096} : tensor<64xf32> <tp: P(sum)>
// |   return %1 : tensor<64xf32>
// | }
// | // -----
// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @rows(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
// |   %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<64x4096xf32> <tp: S(0)>
// |   return %0 : tensor<64x4096xf32>
// | }
