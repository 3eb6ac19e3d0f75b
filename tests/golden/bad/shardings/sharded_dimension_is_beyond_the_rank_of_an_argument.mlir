// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{shards dimension 2 of a tensor of rank 2}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(2)>}) {
  return
}
