// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard --fuse-collectives --verify-spmd

spmd.mesh @mesh <tp = 4>

func.func @attend(%x: tensor<2x16x128xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                  %wq: tensor<128x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                  %wk: tensor<32x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                  %wv: tensor<32x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x8x16x16xf32> {
  %0 = aten.linear(%x, %wq, none) : tensor<2x16x128xf32>
  %q = aten.view(%0) {size = [2, 16, 8, 16]} : tensor<2x16x8x16xf32>
  %qt = aten.transpose.int(%q) {dim0 = 1, dim1 = 2} : tensor<2x8x16x16xf32>
  %1 = aten.linear(%x, %wk, none) : tensor<2x16x32xf32>
  %k = aten.view(%1) {size = [2, 16, 2, 16]} : tensor<2x16x2x16xf32>
  %kt = aten.transpose.int(%k) {dim0 = 1, dim1 = 2} : tensor<2x2x16x16xf32>
  %2 = aten.linear(%x, %wv, none) : tensor<2x16x32xf32>
  %v = aten.view(%2) {size = [2, 16, 2, 16]} : tensor<2x16x2x16xf32>
  %vt = aten.transpose.int(%v) {dim0 = 1, dim1 = 2} : tensor<2x2x16x16xf32>
  %3 = aten.scaled_dot_product_attention(%qt, %kt, %vt, none) {is_causal = true, enable_gqa = true} : tensor<2x8x16x16xf32>
  return %3 : tensor<2x8x16x16xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @attend(%x: tensor<2x16x128xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                   %wq: tensor<128x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                   %wk: tensor<32x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                   %wv: tensor<32x128xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<2x8x16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered", spmd.decided_by = "propagate{topology=flat}"} {
// |   %0 = aten.linear(%x, %wq, none) : tensor<2x16x128xf32> <tp: S(2)>
// |   %q = aten.view(%0) {size = [2, 16, 8, 16]} : tensor<2x16x8x16xf32> <tp: S(2)>
// |   %qt = aten.transpose.int(%q) {dim0 = 1, dim1 = 2} : tensor<2x8x16x16xf32> <tp: S(1)>
// |   %1 = aten.linear(%x, %wk, none) : tensor<2x16x32xf32> <tp: S(2)>
// |   %_1.reshard = spmd.all_gather %1 on [tp(2)2] dim 2 : tensor<2x16x32xf32> <tp(1)2: S(2)>
// |   %k = aten.view(%_1.reshard) {size = [2, 16, 2, 16]} : tensor<2x16x2x16xf32> <tp(1)2: S(2)>
// |   %kt = aten.transpose.int(%k) {dim0 = 1, dim1 = 2} : tensor<2x2x16x16xf32> <tp(1)2: S(1)>
// |   %2 = aten.linear(%x, %wv, none) : tensor<2x16x32xf32> <tp: S(2)>
// |   %_2.reshard = spmd.all_gather %2 on [tp(2)2] dim 2 : tensor<2x16x32xf32> <tp(1)2: S(2)>
// |   %v = aten.view(%_2.reshard) {size = [2, 16, 2, 16]} : tensor<2x16x2x16xf32> <tp(1)2: S(2)>
// |   %vt = aten.transpose.int(%v) {dim0 = 1, dim1 = 2} : tensor<2x2x16x16xf32> <tp(1)2: S(1)>
// |   %3 = aten.scaled_dot_product_attention(%qt, %kt, %vt, none) {enable_gqa = true, is_causal = true} : tensor<2x8x16x16xf32> <tp: S(1)>
// |   return %3 : tensor<2x8x16x16xf32>
// | }
