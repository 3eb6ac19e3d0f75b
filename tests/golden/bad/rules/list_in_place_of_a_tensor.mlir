// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{operand 'self' of aten.relu has another form; expected one tensor}}
  %0 = aten.relu([%x]) : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
