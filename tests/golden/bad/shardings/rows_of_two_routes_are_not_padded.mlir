// RUN: spmd-opt %s --pad-rows=capacity=4 --verify-diagnostics
// The rows of two routes are in different orders, so no `%arrivals` describes the padding of their sum.
spmd.mesh @mesh <ep = 2>

#tokens = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%ids: tensor<8x2xi64> {spmd.sharding = #tokens}, %others: tensor<8x2xi64> {spmd.sharding = #tokens}, %x: tensor<8x2x6xf64> {spmd.sharding = #tokens}) -> (tensor<4x6x6xf64> {spmd.sharding = #tokens}) attributes {spmd.stage = "lowered"} {
  %order, %counts, %arrivals = experts.route(%ids) {experts = 4} : tensor<16xi64> <ep: LocalOrder(0)>, tensor<4xi64> <ep: LocalCounts>, tensor<4xi64> <ep: Arrivals>
  %order.1, %counts.1, %arrivals.1 = experts.route(%others) {experts = 4} : tensor<16xi64> <ep: LocalOrder(0)>, tensor<4xi64> <ep: LocalCounts>, tensor<4xi64> <ep: Arrivals>
  %sorted = experts.sort_rows(%x, %order) : tensor<16x6xf64> <ep: Home(0)>
  %sorted.1 = experts.sort_rows(%x, %order.1) : tensor<16x6xf64> <ep: Home(0)>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<16x6xf64> <ep: Grouped(0)>
  %rows.1 = experts.regroup(%sorted.1, %counts.1, %arrivals.1) : tensor<16x6xf64> <ep: Grouped(0)>
  %both = aten.mul.Tensor(%rows, %rows.1) : tensor<16x6xf64> <ep: Grouped(0)>
  // expected-error@+1 {{pad-rows found 2 routes of the rows of %both; expected rows of one experts.route: regroup the rows of each route alone, or remove pad-rows}}
  %grad = experts.grouped_outer(%rows, %both, %arrivals) {experts = 4} : tensor<4x6x6xf64> <ep: S(0)>
  return %grad : tensor<4x6x6xf64>
}
