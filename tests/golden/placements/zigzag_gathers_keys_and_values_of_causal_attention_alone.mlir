// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard
// Queries are where tokens are; each rank has a chunk from the front and one from the back.
spmd.mesh @mesh <cp = 4>

func.func @attention(%x: tensor<2x30x32xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(1)>},
                     %wq: tensor<32x32xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                     %wk: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                     %wv: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<2x30x32xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(1)>}) {
  %q = aten.linear(%x, %wq) : tensor<2x30x32xf32>
  %k = aten.linear(%x, %wk) : tensor<2x30x8xf32>
  %v = aten.linear(%x, %wv) : tensor<2x30x8xf32>
  %qh = aten.view(%q) {size = [2, 30, 4, 8]} : tensor<2x30x4x8xf32>
  %kh = aten.view(%k) {size = [2, 30, 1, 8]} : tensor<2x30x1x8xf32>
  %vh = aten.view(%v) {size = [2, 30, 1, 8]} : tensor<2x30x1x8xf32>
  %qt = aten.transpose.int(%qh) {dim0 = 1, dim1 = 2} : tensor<2x4x30x8xf32>
  %kt = aten.transpose.int(%kh) {dim0 = 1, dim1 = 2} : tensor<2x1x30x8xf32>
  %vt = aten.transpose.int(%vh) {dim0 = 1, dim1 = 2} : tensor<2x1x30x8xf32>
  %o = aten.scaled_dot_product_attention(%qt, %kt, %vt) {dropout_p = 0.0, enable_gqa = true, is_causal = true} : tensor<2x4x30x8xf32>
  %ot = aten.transpose.int(%o) {dim0 = 1, dim1 = 2} : tensor<2x30x4x8xf32>
  %y = aten.reshape(%ot) {shape = [2, 30, 32]} : tensor<2x30x32xf32>
  return %y : tensor<2x30x32xf32>
}

// | spmd.mesh @mesh <cp = 4>
// |
// | func.func @attention(%x: tensor<2x30x32xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(1)>},
// |                      %wq: tensor<32x32xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                      %wk: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                      %wv: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<2x30x32xf32> {spmd.sharding = #spmd.sharding<@mesh, cp: ZigZag(1)>}) attributes {spmd.stage = "lowered", spmd.decided_by = "propagate{topology=flat}"} {
// |   %q = aten.linear(%x, %wq) : tensor<2x30x32xf32> <cp: ZigZag(1)>
// |   %x.reshard = spmd.all_gather %x on [cp] dim 1 : tensor<2x30x32xf32> <>
// |   %k = aten.linear(%x.reshard, %wk) : tensor<2x30x8xf32> <>
// |   %v = aten.linear(%x.reshard, %wv) : tensor<2x30x8xf32> <>
// |   %qh = aten.view(%q) {size = [2, 30, 4, 8]} : tensor<2x30x4x8xf32> <cp: ZigZag(1)>
// |   %kh = aten.view(%k) {size = [2, 30, 1, 8]} : tensor<2x30x1x8xf32> <>
// |   %vh = aten.view(%v) {size = [2, 30, 1, 8]} : tensor<2x30x1x8xf32> <>
// |   %qt = aten.transpose.int(%qh) {dim0 = 1, dim1 = 2} : tensor<2x4x30x8xf32> <cp: ZigZag(2)>
// |   %kt = aten.transpose.int(%kh) {dim0 = 1, dim1 = 2} : tensor<2x1x30x8xf32> <>
// |   %vt = aten.transpose.int(%vh) {dim0 = 1, dim1 = 2} : tensor<2x1x30x8xf32> <>
// |   %o = aten.scaled_dot_product_attention(%qt, %kt, %vt) {dropout_p = 0.0, enable_gqa = true, is_causal = true} : tensor<2x4x30x8xf32> <cp: ZigZag(2)>
// |   %ot = aten.transpose.int(%o) {dim0 = 1, dim1 = 2} : tensor<2x30x4x8xf32> <cp: ZigZag(1)>
// |   %y = aten.reshape(%ot) {shape = [2, 30, 32]} : tensor<2x30x32xf32> <cp: ZigZag(1)>
// |   return %y : tensor<2x30x32xf32>
// | }
