// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'func.func': spmd.sharding of argument 0 is "dp: S(0)"; expected #spmd.sharding<@mesh, dp: S(0)>}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = "dp: S(0)"}) {
  return
}
