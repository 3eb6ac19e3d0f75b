// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{declares no mesh}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  return
}
