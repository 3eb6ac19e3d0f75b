// RUN: spmd-opt %s --split-input-file --propagate --verify-diagnostics
spmd.mesh @mesh <tp = 4>

func.func @f(%w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'aten.roll': no strategy of its rule accepts an operand with the kept sharding <tp: S(0)> on axis 'tp'; leave the axis out of `keep`}}
  %0 = aten.roll(%w) {shifts = [1], dims = [0]} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%w: tensor<96x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<3x4x8x32xf32> {
  // expected-error@+1 {{'aten.reshape': no strategy of its rule accepts an operand with the kept sharding <tp: S(0)> on axis 'tp'; leave the axis out of `keep`, or shard the operand along another dimension}}
  %0 = aten.reshape(%w) {shape = [3, 4, 8, 32]} : tensor<3x4x8x32xf32>
  return %0 : tensor<3x4x8x32xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @f(%w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<8x8xf32> {
  // expected-error@+2 {{'mylib.mystery' has no rule and requires replicated operands, but an operand has the kept sharding <tp: S(0)>; give it a rule with --load-plugin, or leave the axis out of `keep`}}
  // expected-warning@+1 {{'mylib.mystery' has no rule, so it runs replicated; give it a rule with --load-plugin}}
  %0 = mylib.mystery(%w) : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
