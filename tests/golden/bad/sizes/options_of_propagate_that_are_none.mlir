// RUN: spmd-opt %s --bind-sizes="s0=8" --verify-diagnostics --split-input-file
spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

// expected-error@+1 {{spmd.decided_by: unknown pass 'propagat'}}
func.func @f(%x: tensor<8x8xf32, #spmd.dims<s0, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x8xf32, #spmd.dims<s0, 8>> attributes {spmd.decided_by = "propagat{effort=1}"} {
  %0 = aten.relu(%x) : tensor<[s0]x8xf32> <dp: S(0)>
  return %0 : tensor<8x8xf32, #spmd.dims<s0, 8>>
}

// -----
spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

// expected-error@+1 {{expected the text of propagate and its options}}
func.func @f(%x: tensor<8x8xf32, #spmd.dims<s0, 8>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x8xf32, #spmd.dims<s0, 8>> attributes {spmd.decided_by = "localize"} {
  %0 = aten.relu(%x) : tensor<[s0]x8xf32> <dp: S(0)>
  return %0 : tensor<8x8xf32, #spmd.dims<s0, 8>>
}
