// RUN: --lower-reshard --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(max)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{cannot reshard from <tp: P(max)> to <tp: P(sum)>}}
  %0 = spmd.reshard %x : tensor<16x8xf32> <tp: P(sum)>
  return %0 : tensor<16x8xf32>
}
