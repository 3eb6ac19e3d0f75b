// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<10x7xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<7x9xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<10x9xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w) : tensor<10x9xf32>
  %1 = aten.cos(%0) : tensor<10x9xf32>
  return %1 : tensor<10x9xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<10x7xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %w: tensor<7x9xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<10x9xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.mm(%x, %w) : tensor<10x9xf32> <dp: S(0)>
// |   %1 = aten.cos(%0) : tensor<10x9xf32> <dp: S(0)>
// |   return %1 : tensor<10x9xf32>
// | }
