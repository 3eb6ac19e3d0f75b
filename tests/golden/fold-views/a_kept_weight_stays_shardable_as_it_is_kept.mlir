// RUN: spmd-opt %s --split-input-file --fold-views
// Two ranks cannot each have one and a half of the 3 matrices of a fused projection: the view of its output stays.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<2x6x8xf32>, %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<2x6x3x4x2xf32> {
  %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
  %wt = aten.t(%w) : tensor<8x24xf32>
  %product = aten.mm(%rows, %wt) : tensor<12x24xf32>
  %y = aten.view(%product) {size = [2, 6, 24]} : tensor<2x6x24xf32>
  %qkv = aten.view(%y) {size = [2, 6, 3, 4, 2]} : tensor<2x6x3x4x2xf32>
  return %qkv : tensor<2x6x3x4x2xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<2x6x8xf32>,
// |                 %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<2x6x3x4x2xf32> {
// |   %y = aten.einsum([%x, %w]) {equation = "abc,dc->abd"} : tensor<2x6x24xf32>
// |   %qkv = aten.view(%y) {size = [2, 6, 3, 4, 2]} : tensor<2x6x3x4x2xf32>
// |   return %qkv : tensor<2x6x3x4x2xf32>
// | }

// -----
// Its backward: nor does the gradient of the weight split it.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%g: tensor<2x6x3x4x2xf32>, %x: tensor<12x8xf32>, %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<2x6x8xf32>, tensor<24x8xf32>) {
  %heads = aten._unsafe_view(%g) {size = [2, 6, 24]} : tensor<2x6x24xf32>
  %rows = aten.view(%heads) {size = [12, 24]} : tensor<12x24xf32>
  %columns = aten.t(%rows) : tensor<24x12xf32>
  %dw = aten.mm(%columns, %x) : tensor<24x8xf32>
  %product = aten.mm(%rows, %w) : tensor<12x8xf32>
  %dx = aten.view(%product) {size = [2, 6, 8]} : tensor<2x6x8xf32>
  return %dx, %dw : tensor<2x6x8xf32>, tensor<24x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%g: tensor<2x6x3x4x2xf32>,
// |                 %x: tensor<12x8xf32>,
// |                 %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<2x6x8xf32>, tensor<24x8xf32>) {
// |   %heads = aten._unsafe_view(%g) {size = [2, 6, 24]} : tensor<2x6x24xf32>
// |   %x.reshape = aten.reshape(%x) {shape = [2, 6, 8]} : tensor<2x6x8xf32>
// |   %dw = aten.einsum([%heads, %x.reshape]) {equation = "abc,abd->cd"} : tensor<24x8xf32>
// |   %dx = aten.einsum([%heads, %w]) {equation = "abc,cd->abd"} : tensor<2x6x8xf32>
// |   return %dx, %dw : tensor<2x6x8xf32>, tensor<24x8xf32>
// | }

// -----
// A cast of a kept weight is kept too.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<12x8xf32>, %w: tensor<24x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<12x3x8xf32> {
  %cast = aten._to_copy(%w) {dtype = f32} : tensor<24x8xf32>
  %wt = aten.t(%cast) : tensor<8x24xf32>
  %product = aten.mm(%x, %wt) : tensor<12x24xf32>
  %qkv = aten.view(%product) {size = [12, 3, 8]} : tensor<12x3x8xf32>
  return %qkv : tensor<12x3x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<12x8xf32>,
// |                 %w: tensor<24x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> tensor<12x3x8xf32> {
// |   %cast = aten._to_copy(%w) {dtype = f32} : tensor<24x8xf32>
// |   %wt = aten.t(%cast) : tensor<8x24xf32>
// |   %product = aten.mm(%x, %wt) : tensor<12x24xf32>
// |   %qkv = aten.view(%product) {size = [12, 3, 8]} : tensor<12x3x8xf32>
// |   return %qkv : tensor<12x3x8xf32>
// | }

// -----
// Heads can be shared out: 4 over 2 ranks, and 2 of 4 over parts of an axis of 4 ranks.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<12x8xf32>, %q: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.keep = "dp"}, %k: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x4x2xf32>, tensor<12x2x4xf32>) {
  %qt = aten.t(%q) : tensor<8x8xf32>
  %a = aten.mm(%x, %qt) : tensor<12x8xf32>
  %queries = aten.view(%a) {size = [12, 4, 2]} : tensor<12x4x2xf32>
  %kt = aten.t(%k) : tensor<8x8xf32>
  %b = aten.mm(%x, %kt) : tensor<12x8xf32>
  %keys = aten.view(%b) {size = [12, 2, 4]} : tensor<12x2x4xf32>
  return %queries, %keys : tensor<12x4x2xf32>, tensor<12x2x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<12x8xf32>,
// |                 %q: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.keep = "dp"},
// |                 %k: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<12x4x2xf32>, tensor<12x2x4xf32>) {
// |   %q.reshape = aten.reshape(%q) {shape = [4, 2, 8]} : tensor<4x2x8xf32>
// |   %queries = aten.einsum([%x, %q.reshape]) {equation = "ab,cdb->acd"} : tensor<12x4x2xf32>
// |   %k.reshape = aten.reshape(%k) {shape = [2, 4, 8]} : tensor<2x4x8xf32>
// |   %keys = aten.einsum([%x, %k.reshape]) {equation = "ab,cdb->acd"} : tensor<12x2x4xf32>
// |   return %queries, %keys : tensor<12x4x2xf32>, tensor<12x2x4xf32>
// | }

// -----
// Each rank of a strided placement has its part of all 3 matrices.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<12x8xf32>, %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 3)>, spmd.keep = "tp"}) -> tensor<12x3x8xf32> {
  %wt = aten.t(%w) : tensor<8x24xf32>
  %product = aten.mm(%x, %wt) : tensor<12x24xf32>
  %qkv = aten.view(%product) {size = [12, 3, 8]} : tensor<12x3x8xf32>
  return %qkv : tensor<12x3x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<12x8xf32>,
// |                 %w: tensor<24x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 3)>, spmd.keep = "tp"}) -> tensor<12x3x8xf32> {
// |   %w.reshape = aten.reshape(%w) {shape = [3, 8, 8]} : tensor<3x8x8xf32>
// |   %qkv = aten.einsum([%x, %w.reshape]) {equation = "ab,cdb->acd"} : tensor<12x3x8xf32>
// |   return %qkv : tensor<12x3x8xf32>
// | }
