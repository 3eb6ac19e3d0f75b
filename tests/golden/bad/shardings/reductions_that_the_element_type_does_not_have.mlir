// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{P(sum) on axis 'tp' is not a reduction of i1 values}}
func.func @f(%x: tensor<8xi1> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<8xi1> {
  return %x : tensor<8xi1>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{P(max) on axis 'tp' is not a reduction of complex<f32> values}}
func.func @f(%x: tensor<8xcomplex<f32>> {spmd.sharding = #spmd.sharding<@mesh, tp: P(max)>}) -> tensor<8xcomplex<f32>> {
  return %x : tensor<8xcomplex<f32>>
}
