// RUN: spmd-opt %s --verify-spmd --localize
spmd.mesh @mesh <dp = 2, tp = 4>

// A group along dp and one along tp share one rank. On one stream, the second gather along dp runs after the first.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
             %z: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
  %1 = spmd.all_gather_start %y on [tp] dim 0 : !spmd.pending<tensor<8xf32>> <>
  %2 = spmd.all_gather_start %z on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
  %3 = spmd.wait %1 : tensor<8xf32> <>
  %4 = spmd.wait %0 : tensor<8xf32> <>
  %5 = spmd.wait %2 : tensor<8xf32> <>
  return %4, %3, %5 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %y: tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %z: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) attributes {spmd.stage = "local"} {
// |   %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
// |   %1 = spmd.all_gather_start %y on [tp] dim 0 : !spmd.pending<tensor<8xf32>> <>
// |   %2 = spmd.all_gather_start %z on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>
// |   %3 = spmd.wait %1 : tensor<8xf32> <>
// |   %4 = spmd.wait %0 : tensor<8xf32> <>
// |   %5 = spmd.wait %2 : tensor<8xf32> <>
// |   return %4, %3, %5 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
// | }
