// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{function output types}}
  return %x : tensor<16x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.local} {
  // expected-error@below {{'func.return' must be the last operation in its parent block}}
  return %x : tensor<2xf32>
  %0 = aten.relu(%x) : tensor<2xf32> <tp: S(0)>
}
