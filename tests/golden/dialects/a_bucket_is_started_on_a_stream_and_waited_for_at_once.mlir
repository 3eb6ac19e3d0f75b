// RUN: spmd-opt %s --verify-spmd --localize
spmd.mesh @mesh <dp = 2, tp = 4>

// Each member is reduced as it would be alone; %x stays sharded along tp.
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: P(sum)>},
             %y: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<16x8xf32>, tensor<6xf32>) {
  %0, %1 = spmd.all_reduce_start %x, %y on [dp] op sum stream gradients : !spmd.pending<tensor<16x8xf32>> <tp: S(1)>, !spmd.pending<tensor<6xf32>> <>
  %2, %3 = spmd.wait %0, %1 : tensor<16x8xf32> <tp: S(1)>, tensor<6xf32> <>
  return %2, %3 : tensor<16x8xf32>, tensor<6xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: P(sum)>},
// |              %y: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<16x2xf32>, tensor<6xf32>) attributes {spmd.stage = "local"} {
// |   %0, %1 = spmd.all_reduce_start %x, %y on [dp] op sum stream gradients : !spmd.pending<tensor<16x2xf32>> <tp: S(1)>, !spmd.pending<tensor<6xf32>> <>
// |   %2, %3 = spmd.wait %0, %1 : tensor<16x2xf32> <tp: S(1)>, tensor<6xf32> <>
// |   return %2, %3 : tensor<16x2xf32>, tensor<6xf32>
// | }
