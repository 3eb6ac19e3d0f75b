// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<32x8xf32> {
  // expected-error@+1 {{selects dimension 9 of a tensor of rank 2}}
  %0 = aten.cat([%x, %x]) {dim = 9} : tensor<32x8xf32>
  return %0 : tensor<32x8xf32>
}
