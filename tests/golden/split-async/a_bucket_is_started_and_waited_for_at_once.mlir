// RUN: spmd-opt %s --localize --split-async --verify-spmd
// One start gives a pending value for each member, and one wait takes all of them.
spmd.mesh @mesh <dp = 2>

func.func @main(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %b: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) {
  %0, %1 = spmd.reduce_scatter %a, %b on [dp] dim [0, 1] op sum : tensor<8x4xf32> <dp: S(0)>, tensor<4x8xf32> <dp: S(1)>
  return %0, %1 : tensor<8x4xf32>, tensor<4x8xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
// |                 %b: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) attributes {spmd.stage = "scheduled"} {
// |   %_0.start, %_1.start = spmd.reduce_scatter_start %a, %b on [dp] dim [0, 1] op sum : !spmd.pending<tensor<4x4xf32>> <dp: S(0)>, !spmd.pending<tensor<4x4xf32>> <dp: S(1)>
// |   %0, %1 = spmd.wait %_0.start, %_1.start : tensor<4x4xf32> <dp: S(0)>, tensor<4x4xf32> <dp: S(1)>
// |   return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
// | }
