// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-before"
spmd.mesh @mesh <dp = 2, tp = 4>

// Exchange before the cast to the larger type.
func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %e = aten._to_copy(%x) {dtype = f32} : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_to_all %e on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %x.all_to_all = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
// |   %e = aten._to_copy(%x.all_to_all) {dtype = f32} : tensor<16x8xf32> <tp: S(1)>
// |   return %e : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not before the cast to the smaller type.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
  %e = aten._to_copy(%x) {dtype = bf16} : tensor<16x8xbf16> <tp: S(0)>
  %y = spmd.all_to_all %e on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
  return %y : tensor<16x8xbf16>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
// |   %e = aten._to_copy(%x) {dtype = bf16} : tensor<16x8xbf16> <tp: S(0)>
// |   %y = spmd.all_to_all %e on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
// |   return %y : tensor<16x8xbf16>
// | }
