// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'func.return': Expected arguments to have the same types as the function output types: expected [], got [tensor<16x8xf32>]}}
  return %x : tensor<16x8xf32>
}
