// RUN: spmd-opt %s --propagate="topology=flat"
// @decode leaves the cache open. The user annotates it in @prefill.
spmd.mesh @mesh <tp = 2>

func.func @decode(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  return %k.1 : tensor<4x8x2x4xf32>
}

func.func @prefill(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %rows: tensor<4x4x2x4xf32>, %positions: tensor<4x4xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  return %k.1 : tensor<4x8x2x4xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @decode(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                   %rows: tensor<4x1x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                   %positions: tensor<4x1xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32> <tp: S(1)>
// |   return %k.1 : tensor<4x8x2x4xf32>
// | }
// |
// | func.func @prefill(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                    %rows: tensor<4x4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                    %positions: tensor<4x4xi64> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32> <tp: S(1)>
// |   return %k.1 : tensor<4x8x2x4xf32>
// | }
