// RUN: spmd-opt %s --insert-reshard
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}) -> (tensor<64x64xf32>, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: ?, tp: S(1)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: ?>}) {
  return %x, %x, %x, %x, %x : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}) -> (tensor<64x64xf32>, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: ?>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: ?>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<64x64xf32> <dp: S(0)>
// |   %x.reshard_1 = spmd.reshard %x : tensor<64x64xf32> <>
// |   %x.reshard_2 = spmd.reshard %x : tensor<64x64xf32> <dp: S(0), tp: S(1)>
// |   return %x.reshard, %x.reshard_1, %x.reshard_2, %x, %x.reshard_1 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
// | }
