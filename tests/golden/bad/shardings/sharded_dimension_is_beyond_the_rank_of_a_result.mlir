// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{S(2) on axis 'dp' shards dimension 2 of a tensor of rank 2; expected a dimension below 2}}
  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: S(2)>
  return
}
