// RUN: spmd-opt %s --split-input-file --fold-views
// Two heads over parts of an axis of 6 ranks, `tp(1)2` and `tp(2)3`, leave no part of it to 3 heads.
spmd.mesh @mesh <dp = 1, tp = 6>

func.func @main(%x: tensor<12x8xf32>, %q: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}, %k: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x2x3xf32>, tensor<12x3x2xf32>) {
  %qt = aten.t(%q) : tensor<8x6xf32>
  %a = aten.mm(%x, %qt) : tensor<12x6xf32>
  %queries = aten.view(%a) {size = [12, 2, 3]} : tensor<12x2x3xf32>
  %kt = aten.t(%k) : tensor<8x6xf32>
  %b = aten.mm(%x, %kt) : tensor<12x6xf32>
  %keys = aten.view(%b) {size = [12, 3, 2]} : tensor<12x3x2xf32>
  return %queries, %keys : tensor<12x2x3xf32>, tensor<12x3x2xf32>
}

// | spmd.mesh @mesh <dp = 1, tp = 6>
// |
// | func.func @main(%x: tensor<12x8xf32>,
// |                 %q: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"},
// |                 %k: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x2x3xf32>, tensor<12x3x2xf32>) {
// |   %q.reshape = aten.reshape(%q) {shape = [2, 3, 8]} : tensor<2x3x8xf32>
// |   %queries = aten.einsum([%x, %q.reshape]) {equation = "ab,cdb->acd"} : tensor<12x2x3xf32>
// |   %kt = aten.t(%k) : tensor<8x6xf32>
// |   %b = aten.mm(%x, %kt) : tensor<12x6xf32>
// |   %keys = aten.view(%b) {size = [12, 3, 2]} : tensor<12x3x2xf32>
// |   return %queries, %keys : tensor<12x2x3xf32>, tensor<12x3x2xf32>
// | }

// -----
// A strided placement is another one on parts of its axis, so that the axis is not split for the heads of another weight.
spmd.mesh @mesh <dp = 1, tp = 4>

func.func @main(%x: tensor<12x8xf32>, %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 2)>, spmd.keep = "tp"}, %k: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x8xf32>, tensor<12x2x4xf32>) {
  %wt = aten.t(%w) : tensor<8x8xf32>
  %gate = aten.mm(%x, %wt) : tensor<12x8xf32>
  %kt = aten.t(%k) : tensor<8x8xf32>
  %b = aten.mm(%x, %kt) : tensor<12x8xf32>
  %keys = aten.view(%b) {size = [12, 2, 4]} : tensor<12x2x4xf32>
  return %gate, %keys : tensor<12x8xf32>, tensor<12x2x4xf32>
}

// | spmd.mesh @mesh <dp = 1, tp = 4>
// |
// | func.func @main(%x: tensor<12x8xf32>,
// |                 %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 2)>, spmd.keep = "tp"},
// |                 %k: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x8xf32>, tensor<12x2x4xf32>) {
// |   %wt = aten.t(%w) : tensor<8x8xf32>
// |   %gate = aten.mm(%x, %wt) : tensor<12x8xf32>
// |   %kt = aten.t(%k) : tensor<8x8xf32>
// |   %b = aten.mm(%x, %kt) : tensor<12x8xf32>
// |   %keys = aten.view(%b) {size = [12, 2, 4]} : tensor<12x2x4xf32>
// |   return %gate, %keys : tensor<12x8xf32>, tensor<12x2x4xf32>
// | }
