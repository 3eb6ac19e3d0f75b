// RUN: spmd-opt %s --verify-spmd --localize
spmd.mesh @mesh <dp = 2, tp = 4>

// Of the bucket a rank holds a quarter of %x and all of %y: 32 + 6 elements, which makes 152 over the four of tp.
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: P(sum)>},
             %y: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<16x8xf32>, tensor<6xf32>) {
  %0 = spmd.bucket %x, %y : tensor<152xf32> <tp: S(0), dp: P(sum)>
  %1 = spmd.all_reduce_start %0 on [dp] op sum : !spmd.pending<tensor<152xf32>> <tp: S(0)>
  %2 = spmd.wait %1 : tensor<152xf32> <tp: S(0)>
  %3, %4 = spmd.unbucket %2 : tensor<16x8xf32> <tp: S(1)>, tensor<6xf32> <>
  return %3, %4 : tensor<16x8xf32>, tensor<6xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: P(sum)>},
// |              %y: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<16x2xf32>, tensor<6xf32>) attributes {spmd.local} {
// |   %0 = spmd.bucket %x, %y : tensor<38xf32> <tp: S(0), dp: P(sum)>
// |   %1 = spmd.all_reduce_start %0 on [dp] op sum : !spmd.pending<tensor<38xf32>> <tp: S(0)>
// |   %2 = spmd.wait %1 : tensor<38xf32> <tp: S(0)>
// |   %3, %4 = spmd.unbucket %2 : tensor<16x2xf32> <tp: S(1)>, tensor<6xf32> <>
// |   return %3, %4 : tensor<16x2xf32>, tensor<6xf32>
// | }
