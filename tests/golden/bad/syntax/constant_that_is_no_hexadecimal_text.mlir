// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.constant': has the value 'zzzzzzzz'; expected hexadecimal text, two digits for each byte}}
  %0 = spmd.constant value "zzzzzzzz" : tensor<1xf32>
  return
}
