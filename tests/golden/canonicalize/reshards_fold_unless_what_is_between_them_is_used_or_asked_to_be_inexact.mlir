// RUN: spmd-opt %s --canonicalize

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>) {
  %own = spmd.reshard %x : tensor<16x64xf32> <dp: S(0)>
  %a = spmd.reshard %own : tensor<16x64xf32> <tp: S(0)>
  %b = spmd.reshard %a : tensor<16x64xf32> <tp: S(1)>
  %there = spmd.reshard %x : tensor<16x64xf32> <tp: S(1)>
  %back = spmd.reshard %there : tensor<16x64xf32> <dp: S(0)>
  %used = spmd.reshard %x : tensor<16x64xf32> <>
  %c = spmd.reshard %used : tensor<16x64xf32> <tp: S(1)>
  %p = aten.neg(%x) : tensor<16x64xf32> <tp: P(sum)>
  %sum = spmd.reshard %p : tensor<16x64xf32> <tp: Quantised>
  %d = spmd.reshard %sum : tensor<16x64xf32> <>
  return %b, %back, %used, %c, %d : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>) {
// |   %b = spmd.reshard %x : tensor<16x64xf32> <tp: S(1)>
// |   %used = spmd.reshard %x : tensor<16x64xf32> <>
// |   %c = spmd.reshard %used : tensor<16x64xf32> <tp: S(1)>
// |   %p = aten.neg(%x) : tensor<16x64xf32> <tp: P(sum)>
// |   %sum = spmd.reshard %p : tensor<16x64xf32> <tp: Quantised>
// |   %d = spmd.reshard %sum : tensor<16x64xf32> <>
// |   return %b, %x, %used, %c, %d : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>
// | }
