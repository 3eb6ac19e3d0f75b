// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

spmd.mesh @mesh <tp = 2>

func.func @attention(%x: tensor<2x4x16xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                     %qkv: tensor<48x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 3)>},
                     %out: tensor<16x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<2x4x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.linear(%x, %qkv) : tensor<2x4x48xf32>
  %q, %k, %v = aten.chunk(%0) {chunks = 3, dim = -1} : tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x16xf32>
  %1 = aten.view(%q) {size = [2, 4, 4, 4]} : tensor<2x4x4x4xf32>
  %2 = aten.transpose.int(%1) {dim0 = 1, dim1 = 2} : tensor<2x4x4x4xf32>
  %3 = aten.view(%k) {size = [2, 4, 4, 4]} : tensor<2x4x4x4xf32>
  %4 = aten.transpose.int(%3) {dim0 = 1, dim1 = 2} : tensor<2x4x4x4xf32>
  %5 = aten.view(%v) {size = [2, 4, 4, 4]} : tensor<2x4x4x4xf32>
  %6 = aten.transpose.int(%5) {dim0 = 1, dim1 = 2} : tensor<2x4x4x4xf32>
  %7 = aten.scaled_dot_product_attention(%2, %4, %6) {is_causal = true} : tensor<2x4x4x4xf32>
  %8 = aten.transpose.int(%7) {dim0 = 1, dim1 = 2} : tensor<2x4x4x4xf32>
  %9 = aten.view(%8) {size = [2, 4, 16]} : tensor<2x4x16xf32>
  %10 = aten.linear(%9, %out) : tensor<2x4x16xf32>
  return %10 : tensor<2x4x16xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @attention(%x: tensor<2x4x16xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                      %qkv: tensor<24x16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 3)>},
// |                      %out: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<2x4x16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.linear(%x, %qkv) : tensor<2x4x24xf32> <tp: Strided(2, 3)>
// |   %q, %k, %v = aten.chunk(%0) {chunks = 3, dim = -1} : tensor<2x4x8xf32> <tp: S(2)>, tensor<2x4x8xf32> <tp: S(2)>, tensor<2x4x8xf32> <tp: S(2)>
// |   %1 = aten.view(%q) {size = [2, 4, 2, 4]} : tensor<2x4x2x4xf32> <tp: S(2)>
// |   %2 = aten.transpose.int(%1) {dim0 = 1, dim1 = 2} : tensor<2x2x4x4xf32> <tp: S(1)>
// |   %3 = aten.view(%k) {size = [2, 4, 2, 4]} : tensor<2x4x2x4xf32> <tp: S(2)>
// |   %4 = aten.transpose.int(%3) {dim0 = 1, dim1 = 2} : tensor<2x2x4x4xf32> <tp: S(1)>
// |   %5 = aten.view(%v) {size = [2, 4, 2, 4]} : tensor<2x4x2x4xf32> <tp: S(2)>
// |   %6 = aten.transpose.int(%5) {dim0 = 1, dim1 = 2} : tensor<2x2x4x4xf32> <tp: S(1)>
// |   %7 = aten.scaled_dot_product_attention(%2, %4, %6) {is_causal = true} : tensor<2x2x4x4xf32> <tp: S(1)>
// |   %8 = aten.transpose.int(%7) {dim0 = 1, dim1 = 2} : tensor<2x4x2x4xf32> <tp: S(2)>
// |   %9 = aten.view(%8) {size = [2, 4, 8]} : tensor<2x4x8xf32> <tp: S(2)>
// |   %10 = aten.linear(%9, %out) : tensor<2x4x16xf32> <tp: P(sum)>
// |   %_10.reshard = spmd.all_reduce %10 on [tp] op sum : tensor<2x4x16xf32> <>
// |   return %_10.reshard : tensor<2x4x16xf32>
// | }
