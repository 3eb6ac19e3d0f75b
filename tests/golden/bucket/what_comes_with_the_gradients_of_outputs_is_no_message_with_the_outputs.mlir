// RUN: spmd-opt %s --localize --bucket="memory=1MB" --verify-spmd
// The gradient of the output comes once the output has been returned: sums on both sides are messages of their own.
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %z: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %dy: tensor<8xf32> {spmd.kind = "tangent", spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = spmd.all_reduce %x on [dp] op sum : tensor<8xf32> <>
  %1 = spmd.all_reduce %z on [dp] op sum : tensor<8xf32> <>
  %2 = spmd.all_reduce %dy on [dp] op sum : tensor<8xf32> <>
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
// |                 %z: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
// |                 %dy: tensor<8xf32> {spmd.kind = "tangent", spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) attributes {spmd.stage = "scheduled"} {
// |   %0, %1 = spmd.all_reduce %x, %z on [dp] op sum : tensor<8xf32> <>, tensor<8xf32> <>
// |   %2 = spmd.all_reduce %dy on [dp] op sum : tensor<8xf32> <>
// |   return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
// | }
