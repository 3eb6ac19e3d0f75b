// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'func.func': argument 0: has a sharding over mesh @other; expected the mesh of the module, @mesh}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@other, dp: S(0)>}) {
  return
}
