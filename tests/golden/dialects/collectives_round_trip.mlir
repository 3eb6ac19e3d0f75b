// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}) -> tensor<16x8xf32> {
  %0 = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  %1 = spmd.permute %0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
  %2 = spmd.all_to_all %1 on [dp] from 0 to 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
  %3 = spmd.all_gather %2 on [dp] dim 1 : tensor<16x8xf32> <tp: S(0)>
  %4 = spmd.slice %3 on [dp] dim 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
  %5 = spmd.all_gather_start %4 on [dp] dim 1 : !spmd.pending<tensor<16x8xf32>> <tp: S(0)>
  %6 = spmd.wait %5 : tensor<16x8xf32> <tp: S(0)>
  %7 = spmd.partition %6 on [dp] op max : tensor<16x8xf32> <tp: S(0), dp: P(max)>
  %8 = spmd.all_reduce %7 on [dp] op max : tensor<16x8xf32> <tp: S(0)>
  %9 = spmd.all_gather %8 on [tp] dim 0 : tensor<16x8xf32> <>
  %10 = spmd.broadcast %9 on [dp, tp] : tensor<16x8xf32> <>
  %11 = spmd.reshard %10 : tensor<16x8xf32> <dp: S(0)>
  return %11 : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %0 = spmd.reduce_scatter %x on [tp] dim 0 op sum : tensor<16x8xf32> <dp: S(0), tp: S(0)>
// |   %1 = spmd.permute %0 : tensor<16x8xf32> <tp: S(0), dp: S(0)>
// |   %2 = spmd.all_to_all %1 on [dp] from 0 to 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   %3 = spmd.all_gather %2 on [dp] dim 1 : tensor<16x8xf32> <tp: S(0)>
// |   %4 = spmd.slice %3 on [dp] dim 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   %5 = spmd.all_gather_start %4 on [dp] dim 1 : !spmd.pending<tensor<16x8xf32>> <tp: S(0)>
// |   %6 = spmd.wait %5 : tensor<16x8xf32> <tp: S(0)>
// |   %7 = spmd.partition %6 on [dp] op max : tensor<16x8xf32> <tp: S(0), dp: P(max)>
// |   %8 = spmd.all_reduce %7 on [dp] op max : tensor<16x8xf32> <tp: S(0)>
// |   %9 = spmd.all_gather %8 on [tp] dim 0 : tensor<16x8xf32> <>
// |   %10 = spmd.broadcast %9 on [dp, tp] : tensor<16x8xf32> <>
// |   %11 = spmd.reshard %10 : tensor<16x8xf32> <dp: S(0)>
// |   return %11 : tensor<16x8xf32>
// | }
