// RUN: spmd-opt %s --lower-reshard
spmd.mesh @node_2_gpu_4 <node = 2, gpu = 4> intra [gpu]

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@node_2_gpu_4, gpu: S(0)>}) -> tensor<16x8xf32> {
  %0 = spmd.reshard %x : tensor<16x8xf32> <>
  return %0 : tensor<16x8xf32>
}

// | spmd.mesh @node_2_gpu_4 <node = 2, gpu = 4> intra [gpu]
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@node_2_gpu_4, gpu: S(0)>}) -> tensor<16x8xf32> attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.all_gather %x on [gpu] dim 0 : tensor<16x8xf32> <>
// |   return %0 : tensor<16x8xf32>
// | }
