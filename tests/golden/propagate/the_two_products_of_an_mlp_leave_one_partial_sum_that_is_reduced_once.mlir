// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2, tp = 4>

// The batch stays sharded by dp all along; tp shards the hidden dimension, and the second product sums over it.
func.func @mlp(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %up: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %up) : tensor<64x1024xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32>
  %2 = aten.mm(%1, %down) : tensor<64x256xf32>
  return %2 : tensor<64x256xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @mlp(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                %up: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                %down: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.mm(%x, %up) : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %2 = aten.mm(%1, %down) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   return %2 : tensor<64x256xf32>
// | }
