// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{permute keeps partial values, found <tp: P(sum)> and <dp: P(sum)>}}
  %0 = spmd.permute %x : tensor<16x8xf32> <dp: P(sum)>
  return
}
