// RUN: spmd-opt %s --split-input-file --propagate="effort=50 missing-rule=error"
spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x8xf32, #spmd.dims<s0, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x8xf32, #spmd.dims<s0, 8>> {
  %0 = aten.relu(%x) : tensor<[s0]x8xf32>
  return %0 : tensor<8x8xf32, #spmd.dims<s0, 8>>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | spmd.sizes {s0 = 8 in 2..64}
// |
// | func.func @f(%x: tensor<8x8xf32, #spmd.dims<s0, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x8xf32, #spmd.dims<s0, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{effort=50 missing-rule=error}"} {
// |   %0 = aten.relu(%x) : tensor<[s0]x8xf32> <dp: S(0)>
// |   return %0 : tensor<8x8xf32, #spmd.dims<s0, 8>>
// | }

// -----
spmd.mesh @mesh <dp = 2>

// Sizes are numbers, so that nothing is decided later.
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x8xf32> {
  %0 = aten.relu(%x) : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.relu(%x) : tensor<8x8xf32> <dp: S(0)>
// |   return %0 : tensor<8x8xf32>
// | }
