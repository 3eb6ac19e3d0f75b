// RUN: spmd-opt %s --propagate --verify-diagnostics
spmd.mesh @mesh <tp = 4>

func.func @f(%w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'aten.roll': no strategy of its rule takes an operand kept in <tp: S(0)> on axis 'tp'; leave the axis out of `keep`}}
  %0 = aten.roll(%w) {shifts = [1], dims = [0]} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
