// RUN: spmd-opt %s --insert-reshard --lower-reshard

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x64xf32>,
             %up.weight: tensor<64x32xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>) {
  %0 = spmd.reshard %up.weight : tensor<64x32xf32> <dp: S(0)>
  %1 = spmd.reshard %0 : tensor<64x32xf32> <dp: S(1)>
  %2 = spmd.reshard %1 : tensor<64x32xf32> <>
  return %0, %1, %2 : tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x64xf32>,
// |              %up.weight: tensor<64x32xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>) {
// |   %up.weight.reshard_2 = spmd.all_gather %up.weight on [dp, tp] dim 0 : tensor<64x32xf32> <>
// |   %up.weight.reshard = spmd.slice %up.weight.reshard_2 on [dp] dim 0 : tensor<64x32xf32> <dp: S(0)>
// |   %up.weight.reshard_1 = spmd.slice %up.weight.reshard_2 on [dp] dim 1 : tensor<64x32xf32> <dp: S(1)>
// |   return %up.weight.reshard, %up.weight.reshard_1, %up.weight.reshard_2 : tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>
// | }
