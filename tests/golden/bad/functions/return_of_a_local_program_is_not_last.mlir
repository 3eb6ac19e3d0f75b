// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "local"} {
  // expected-error@below {{'func.return' must be the last operation in its parent block}}
  return %x : tensor<2xf32>
  %0 = aten.relu(%x) : tensor<2xf32> <tp: S(0)>
}
