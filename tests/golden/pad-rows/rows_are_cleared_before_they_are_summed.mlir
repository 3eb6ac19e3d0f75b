// RUN: spmd-opt %s --pad-rows=capacity=4 --pad-rows=capacity=4 --verify-spmd
// The gradient of the weights sums over rows, so padding rows become zeros before it. The product keeps rows apart.
// A second run changes nothing.
spmd.mesh @mesh <ep = 2>

#tokens = #spmd.sharding<@mesh, ep: S(0)>

func.func @f(%ids: tensor<8x2xi64> {spmd.sharding = #tokens}, %x: tensor<8x2x6xf64> {spmd.sharding = #tokens},
             %w: tensor<4x6x6xf64> {spmd.sharding = #tokens}) -> (tensor<4x6x6xf64> {spmd.sharding = #tokens}) attributes {spmd.stage = "lowered"} {
  %order, %counts, %arrivals = experts.route(%ids) {experts = 4} : tensor<16xi64> <ep: LocalOrder(0)>, tensor<4xi64> <ep: LocalCounts>, tensor<4xi64> <ep: Arrivals>
  %sorted = experts.sort_rows(%x, %order) : tensor<16x6xf64> <ep: Home(0)>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<16x6xf64> <ep: Grouped(0)>
  %y = experts.grouped_mm(%rows, %w, %arrivals) : tensor<16x6xf64> <ep: Grouped(0)>
  %grad = experts.grouped_outer(%rows, %y, %arrivals) {experts = 4} : tensor<4x6x6xf64> <ep: S(0)>
  return %grad : tensor<4x6x6xf64>
}

// | spmd.mesh @mesh <ep = 2>
// |
// | func.func @f(%ids: tensor<8x2xi64> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
// |              %x: tensor<8x2x6xf64> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
// |              %w: tensor<4x6x6xf64> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) -> (tensor<4x6x6xf64> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) attributes {spmd.stage = "lowered"} {
// |   %order, %counts, %arrivals = experts.route(%ids) {experts = 4} : tensor<16xi64> <ep: LocalOrder(0)>, tensor<4xi64> <ep: LocalCounts>, tensor<4xi64> <ep: Arrivals>
// |   %sorted = experts.sort_rows(%x, %order) : tensor<16x6xf64> <ep: Home(0)>
// |   %rows = experts.regroup(%sorted, %counts, %arrivals) {capacity = 4} : tensor<16x6xf64> <ep: Slots(0)>
// |   %y = experts.grouped_mm(%rows, %w, %arrivals) : tensor<16x6xf64> <ep: Slots(0)>
// |   %rows.clear = experts.clear(%rows, %arrivals) : tensor<16x6xf64> <ep: Cleared(0)>
// |   %y.clear = experts.clear(%y, %arrivals) : tensor<16x6xf64> <ep: Cleared(0)>
// |   %grad = experts.grouped_outer(%rows.clear, %y.clear, %arrivals) {experts = 4} : tensor<4x6x6xf64> <ep: S(0)>
// |   return %grad : tensor<4x6x6xf64>
// | }
