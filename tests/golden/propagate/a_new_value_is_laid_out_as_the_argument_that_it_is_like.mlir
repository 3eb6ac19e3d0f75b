// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <a = 4>

func.func @f(%w: tensor<4096x4096xf32>) -> (tensor<4096x4096xf32> {spmd.like = "w"}) {
  %0 = aten.permute(%w) {dims = [1, 0]} : tensor<4096x4096xf32>
  %1 = aten.tanh(%0) : tensor<4096x4096xf32>
  %2 = aten.tanh(%1) : tensor<4096x4096xf32>
  return %2 : tensor<4096x4096xf32>
}

// | spmd.mesh @mesh <a = 4>
// |
// | func.func @f(%w: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.permute(%w) {dims = [1, 0]} : tensor<4096x4096xf32> <>
// |   %1 = aten.tanh(%0) : tensor<4096x4096xf32> <>
// |   %2 = aten.tanh(%1) : tensor<4096x4096xf32> <>
// |   return %2 : tensor<4096x4096xf32>
// | }
