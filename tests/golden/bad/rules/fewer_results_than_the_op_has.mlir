// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <ep = 2>

func.func @f(%ids: tensor<8x2xi64> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) -> tensor<16xi64> {
  // expected-error@+1 {{experts.route: found 2 results; expected 3}}
  %order, %counts = experts.route(%ids) {experts = 4} : tensor<16xi64>, tensor<4xi64>
  return %order : tensor<16xi64>
}
