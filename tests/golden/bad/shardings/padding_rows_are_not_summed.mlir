// RUN: spmd-opt %s --verify-spmd --verify-diagnostics
// Slots may contain padding of any elements, so an op that combines rows requires experts.clear.
spmd.mesh @mesh <ep = 2>

#tokens = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%ids: tensor<8x2xi64> {spmd.sharding = #tokens}, %x: tensor<8x2x6xf64> {spmd.sharding = #tokens}) -> (tensor<6xf64> {spmd.sharding = #spmd.sharding<@mesh, ep: P(sum)>}) attributes {spmd.stage = "lowered"} {
  %order, %counts, %arrivals = experts.route(%ids) {experts = 4} : tensor<16xi64> <ep: LocalOrder(0)>, tensor<4xi64> <ep: LocalCounts>, tensor<4xi64> <ep: Arrivals>
  %sorted = experts.sort_rows(%x, %order) : tensor<16x6xf64> <ep: Home(0)>
  %rows = experts.regroup(%sorted, %counts, %arrivals) {capacity = 4} : tensor<16x6xf64> <ep: Slots(0)>
  // expected-error@+1 {{it combines rows, and padding rows are unspecified; clear them with experts.clear first}}
  %sum = aten.sum.dim_IntList(%rows) {dim = [0]} : tensor<6xf64> <ep: P(sum)>
  return %sum : tensor<6xf64>
}
