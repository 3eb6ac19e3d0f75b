// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{axis 'pp' is not in mesh @mesh <dp = 2, tp = 4>; expected one of dp, tp}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, pp: S(0)>}) {
  return
}
