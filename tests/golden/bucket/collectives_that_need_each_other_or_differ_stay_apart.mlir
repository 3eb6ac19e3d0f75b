// RUN: spmd-opt %s --localize --bucket="memory=auto" --verify-spmd
// Sums depend on each other; a maximum, a sum on another axis and one of another element type are messages of their own.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%a: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(max)>}, %c: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %d: tensor<8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %e: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf64>) {
  %0 = spmd.all_reduce %a on [dp] op sum : tensor<8xf32> <>
  %1 = spmd.all_reduce %b on [dp] op max : tensor<8xf32> <>
  %2 = spmd.all_reduce %c on [tp] op sum : tensor<8xf32> <>
  %3 = spmd.all_reduce %d on [dp] op sum : tensor<8xf64> <>
  %4 = aten.unsqueeze(%0) {dim = 1} : tensor<8x1xf32> <>
  %5 = aten.mul.Tensor(%4, %e) : tensor<8x8xf32> <dp: S(1)>
  %6 = aten.sum.dim_IntList(%5) {dim = [1]} : tensor<8xf32> <dp: P(sum)>
  %7 = spmd.all_reduce %6 on [dp] op sum : tensor<8xf32> <>
  return %7, %1, %2, %3 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf64>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%a: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
// |                 %b: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(max)>},
// |                 %c: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %d: tensor<8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
// |                 %e: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf64>) attributes {spmd.stage = "scheduled"} {
// |   %0 = spmd.all_reduce %a on [dp] op sum : tensor<8xf32> <>
// |   %1 = spmd.all_reduce %b on [dp] op max : tensor<8xf32> <>
// |   %2 = spmd.all_reduce %c on [tp] op sum : tensor<8xf32> <>
// |   %3 = spmd.all_reduce %d on [dp] op sum : tensor<8xf64> <>
// |   %4 = aten.unsqueeze(%0) {dim = 1} : tensor<8x1xf32> <>
// |   %5 = aten.mul.Tensor(%4, %e) : tensor<8x4xf32> <dp: S(1)>
// |   %6 = aten.sum.dim_IntList(%5) {dim = [1]} : tensor<8xf32> <dp: P(sum)>
// |   %7 = spmd.all_reduce %6 on [dp] op sum : tensor<8xf32> <>
// |   return %7, %1, %2, %3 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf64>
// | }
