// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{invalid dimension in S(-1); expected a dimension counted from 0, as in S(0)}}
  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: S(-1)>
  return
}
