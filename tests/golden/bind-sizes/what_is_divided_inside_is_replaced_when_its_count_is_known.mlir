// RUN: --propagate --bind-sizes="s0=4097" --insert-reshard
spmd.mesh @mesh <tp = 2>

spmd.sizes {s0 = 4096 in 2..}

func.func @main(%x: tensor<512x[s0]xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<512x[s0]xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %n = aten.sym_size.int(%x, 1) : !spmd.size<s0>
  %0 = aten.layer_norm(%x) {normalized_shape = [%n]} : tensor<512x[s0]xf32>
  return %0 : tensor<512x[s0]xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @main(%x: tensor<512x4097xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<512x4097xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
// |   %0 = aten.sum.dim_IntList(%x) {dim = [1], keepdim = true} : tensor<512x1xf32> <tp: P(sum)>
// |   %1 = aten.div.Scalar(%0) {other = 4097} : tensor<512x1xf32> <tp: P(sum)>
// |   %2 = spmd.reshard %1 : tensor<512x1xf32> <>
// |   %3 = aten.sub.Tensor(%x, %2) : tensor<512x4097xf32> <tp: S(1)>
// |   %4 = aten.mul.Tensor(%3, %3) : tensor<512x4097xf32> <tp: S(1)>
// |   %5 = aten.sum.dim_IntList(%4) {dim = [1], keepdim = true} : tensor<512x1xf32> <tp: P(sum)>
// |   %6 = aten.div.Scalar(%5) {other = 4097} : tensor<512x1xf32> <tp: P(sum)>
// |   %7 = spmd.reshard %6 : tensor<512x1xf32> <>
// |   %8 = aten.add.Scalar(%7) {other = 1.0e-05} : tensor<512x1xf32> <>
// |   %9 = aten.rsqrt(%8) : tensor<512x1xf32> <>
// |   %10 = aten.mul.Tensor(%3, %9) : tensor<512x4097xf32> <tp: S(1)>
// |   return %10 : tensor<512x4097xf32>
// | }
