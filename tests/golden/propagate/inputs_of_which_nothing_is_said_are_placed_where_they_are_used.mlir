// RUN: spmd-opt %s --propagate="topology=flat"
spmd.mesh @mesh <dp = 4>

// %w is wanted in columns because of %v; %unused is used by no op, so it stays replicated.
func.func @f(%x: tensor<64x256xf32>, %w: tensor<256x256xf32>, %v: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %unused: tensor<3xf32>)
    -> tensor<64x64xf32> {
  %0 = aten.mm(%x, %w) : tensor<64x256xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x256xf32>
  %2 = aten.mm(%1, %v) : tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %w: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>},
// |              %v: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %unused: tensor<3xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x256xf32> <dp: S(1)>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x256xf32> <dp: S(1)>
// |   %2 = aten.mm(%1, %v) : tensor<64x64xf32> <dp: P(sum)>
// |   return %2 : tensor<64x64xf32>
// | }
