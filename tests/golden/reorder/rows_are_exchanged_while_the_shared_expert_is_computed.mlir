// RUN: spmd-opt %s --propagate="topology=h100x8" --insert-reshard --lower-reshard --localize --split-async --reorder="topology=h100x8 memory=1TB" --verify-spmd
// The shared expert comes last in the given text. Its products run while rows are dispatched, and
// while they are combined.
spmd.mesh @mesh <ep = 8>

func.func @f(%x: tensor<65536x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
             %router: tensor<2048x64xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %w_up: tensor<64x2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
             %w_down: tensor<64x1024x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
             %shared_up: tensor<2048x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
             %shared_down: tensor<16384x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<65536x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) {
  %scores = aten.mm(%x, %router) : tensor<65536x64xbf16>
  %top, %ids = aten.topk(%scores) {k = 2} : tensor<65536x2xbf16>, tensor<65536x2xi64>
  %order, %counts, %arrivals = experts.route(%ids) {experts = 64} : tensor<131072xi64>, tensor<64xi64>, tensor<64xi64>
  %column = aten.unsqueeze(%x) {dim = 1} : tensor<65536x1x2048xbf16>
  %pairs = aten.expand(%column) {size = [65536, 2, 2048]} : tensor<65536x2x2048xbf16>
  %sorted = experts.sort_rows(%pairs, %order) : tensor<131072x2048xbf16>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<131072x2048xbf16>
  %up = experts.grouped_mm(%rows, %w_up, %arrivals) : tensor<131072x1024xbf16> <ep: Grouped(0)>
  %active = aten.silu(%up) : tensor<131072x1024xbf16>
  %down = experts.grouped_mm(%active, %w_down, %arrivals) : tensor<131072x2048xbf16>
  %home = experts.regroup(%down, %counts, %arrivals) : tensor<131072x2048xbf16>
  %results = experts.unsort_rows(%home, %order, %ids) : tensor<65536x2x2048xbf16>
  %routed = aten.sum.dim_IntList(%results) {dim = [1]} : tensor<65536x2048xbf16>
  %shared_hidden = aten.mm(%x, %shared_up) : tensor<65536x16384xbf16>
  %shared_active = aten.silu(%shared_hidden) : tensor<65536x16384xbf16>
  %shared = aten.mm(%shared_active, %shared_down) : tensor<65536x2048xbf16>
  %y = aten.add.Tensor(%routed, %shared) : tensor<65536x2048xbf16>
  return %y : tensor<65536x2048xbf16>
}

// | spmd.mesh @mesh <ep = 8>
// |
// | func.func @f(%x: tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
// |              %router: tensor<2048x64xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %w_up: tensor<8x2048x1024xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
// |              %w_down: tensor<8x1024x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>},
// |              %shared_up: tensor<2048x16384xbf16> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %shared_down: tensor<16384x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8192x2048xbf16> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) attributes {spmd.stage = "scheduled"} {
// |   %scores = aten.mm(%x, %router) : tensor<8192x64xbf16> <ep: S(0)>
// |   %top, %ids = aten.topk(%scores) {k = 2} : tensor<8192x2xbf16> <ep: S(0)>, tensor<8192x2xi64> <ep: S(0)>
// |   %order, %counts, %order.route_2 = experts.route(%ids) {experts = 64} : tensor<?xi64> <ep: LocalOrder(0)>, tensor<64xi64> <ep: LocalCounts>, tensor<64xi64> of [131072], none, none attributes {spmd.form = {op = "experts.route", operands = [tensor<65536x2xi64>], needs = #spmd.shardings<@mesh, <ep: S(0)>>, results = [tensor<131072xi64>, tensor<64xi64>, tensor<64xi64>], made = #spmd.shardings<@mesh, <ep: LocalOrder(0)>, <ep: LocalCounts>, <ep: Arrivals>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 2, results = [[0, 0], [0, 1], [1, 0]]}>, arguments = #spmd.arguments<{experts = 64}>}}
// |   %arrivals.start = spmd.exchange_counts_start %order.route_2 on [ep] : !spmd.pending<tensor<8x8xi64>> <ep: Arrivals> of [64]
// |   %column = aten.unsqueeze(%x) {dim = 1} : tensor<8192x1x2048xbf16> <ep: S(0)>
// |   %pairs = aten.expand(%column) {size = [8192, 2, 2048]} : tensor<8192x2x2048xbf16> <ep: S(0)>
// |   %sorted = experts.sort_rows(%pairs, %order) : tensor<?x2048xbf16> <ep: Home(0)> of [131072, 2048]
// |   %arrivals = spmd.wait %arrivals.start : tensor<8x8xi64> <ep: Arrivals> of [64]
// |   %rows.start = spmd.exchange_rows_start %sorted, %counts, %arrivals on [ep] : !spmd.pending<tensor<16384x2048xbf16>> attributes {spmd.form = {op = "experts.regroup", operands = [tensor<131072x2048xbf16>, tensor<64xi64>, tensor<64xi64>], needs = #spmd.shardings<@mesh, <ep: Home(0)>, <ep: LocalCounts>, <ep: Arrivals>>, results = [tensor<131072x2048xbf16>], made = #spmd.shardings<@mesh, <ep: Grouped(0)>>, places = #spmd.arguments<{operands = [[0, 0], [0, 1], [0, 2]], ops = 2, results = [[1, 0]]}>}}
// |   %shared_hidden = aten.mm(%x, %shared_up) : tensor<8192x16384xbf16> <ep: S(0)>
// |   %rows.exchange_rows = spmd.wait %rows.start : tensor<16384x2048xbf16>
// |   %rows = experts.from_sources(%rows.exchange_rows, %arrivals) : tensor<?x2048xbf16> <ep: Grouped(0)> of [131072, 2048]
// |   %up.sum = aten.sum.dim_IntList(%arrivals) {dim = [0]} : tensor<8xi64> attributes {spmd.form = {op = "experts.grouped_mm", operands = [tensor<131072x2048xbf16>, tensor<64x2048x1024xbf16>, tensor<64xi64>], needs = #spmd.shardings<@mesh, <ep: Grouped(0)>, <ep: S(0)>, <ep: Arrivals>>, results = [tensor<131072x1024xbf16>], made = #spmd.shardings<@mesh, <ep: Grouped(0)>>, places = #spmd.arguments<{operands = [[1, 0], [1, 1], [0, 0]], ops = 2, results = [[1, 0]]}>}}
// |   %up = experts.grouped_mm(%rows, %w_up, %up.sum) : tensor<?x1024xbf16> <ep: Grouped(0)> of [131072, 1024]
// |   %active = aten.silu(%up) : tensor<?x1024xbf16> <ep: Grouped(0)> of [131072, 1024]
// |   %down.sum = aten.sum.dim_IntList(%arrivals) {dim = [0]} : tensor<8xi64> attributes {spmd.form = {op = "experts.grouped_mm", operands = [tensor<131072x1024xbf16>, tensor<64x1024x2048xbf16>, tensor<64xi64>], needs = #spmd.shardings<@mesh, <ep: Grouped(0)>, <ep: S(0)>, <ep: Arrivals>>, results = [tensor<131072x2048xbf16>], made = #spmd.shardings<@mesh, <ep: Grouped(0)>>, places = #spmd.arguments<{operands = [[1, 0], [1, 1], [0, 0]], ops = 2, results = [[1, 0]]}>}}
// |   %down = experts.grouped_mm(%active, %w_down, %down.sum) : tensor<?x2048xbf16> <ep: Grouped(0)> of [131072, 2048]
// |   %home.to_sources = experts.to_sources(%down, %arrivals) : tensor<16384x2048xbf16> attributes {spmd.form = {op = "experts.regroup", operands = [tensor<131072x2048xbf16>, tensor<64xi64>, tensor<64xi64>], needs = #spmd.shardings<@mesh, <ep: Grouped(0)>, <ep: LocalCounts>, <ep: Arrivals>>, results = [tensor<131072x2048xbf16>], made = #spmd.shardings<@mesh, <ep: Home(0)>>, places = #spmd.arguments<{operands = [[0, 0], [1, 2], [0, 1]], ops = 2, results = [[1, 0]]}>}}
// |   %home.start = spmd.exchange_rows_start %home.to_sources, %arrivals, %counts on [ep] : !spmd.pending<tensor<?x2048xbf16>> <ep: Home(0)> of [131072, 2048]
// |   %shared_active = aten.silu(%shared_hidden) : tensor<8192x16384xbf16> <ep: S(0)>
// |   %shared = aten.mm(%shared_active, %shared_down) : tensor<8192x2048xbf16> <ep: S(0)>
// |   %home = spmd.wait %home.start : tensor<?x2048xbf16> <ep: Home(0)> of [131072, 2048]
// |   %results = experts.unsort_rows(%home, %order, %ids) : tensor<8192x2x2048xbf16> <ep: S(0)>
// |   %routed = aten.sum.dim_IntList(%results) {dim = [1]} : tensor<8192x2048xbf16> <ep: S(0)>
// |   %y = aten.add.Tensor(%routed, %shared) : tensor<8192x2048xbf16> <ep: S(0)>
// |   return %y : tensor<8192x2048xbf16>
// | }
