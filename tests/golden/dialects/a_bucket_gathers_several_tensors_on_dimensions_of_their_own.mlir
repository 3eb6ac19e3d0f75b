// RUN: spmd-opt %s --verify-spmd --localize
spmd.mesh @mesh <fsdp = 2>

// One message carries both shards; %w1 is gathered on its rows, %w2 on its columns.
func.func @f(%w1: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
             %w2: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(1)>}) -> (tensor<8x4xf32>, tensor<4x6xf32>) {
  %0, %1 = spmd.all_gather %w1, %w2 on [fsdp] dim [0, 1] : tensor<8x4xf32> <>, tensor<4x6xf32> <>
  return %0, %1 : tensor<8x4xf32>, tensor<4x6xf32>
}

// | spmd.mesh @mesh <fsdp = 2>
// |
// | func.func @f(%w1: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
// |              %w2: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(1)>}) -> (tensor<8x4xf32>, tensor<4x6xf32>) attributes {spmd.stage = "local"} {
// |   %0, %1 = spmd.all_gather %w1, %w2 on [fsdp] dim [0, 1] : tensor<8x4xf32> <>, tensor<4x6xf32> <>
// |   return %0, %1 : tensor<8x4xf32>, tensor<4x6xf32>
// | }
