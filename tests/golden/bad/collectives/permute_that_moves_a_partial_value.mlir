// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  // expected-error@+1 {{permute cannot change partial placements, found <tp: P(sum)> to <dp: P(sum)>}}
  %0 = spmd.permute %x : tensor<16x8xf32> <dp: P(sum)>
  return
}
