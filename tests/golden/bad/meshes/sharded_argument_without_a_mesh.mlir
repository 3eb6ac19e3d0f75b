// RUN: spmd-opt %s --verify-diagnostics

// expected-error@+1 {{'func.func': argument 0: has a sharding, but the module declares no mesh; expected one: add `spmd.mesh @mesh <dp = 2>` with the axes}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  return
}
