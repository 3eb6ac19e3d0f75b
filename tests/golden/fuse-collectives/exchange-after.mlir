// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=exchange-after"
spmd.mesh @mesh <dp = 2, tp = 4>

// Exchange after the cast to the smaller type.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
  %g = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
  %y = aten._to_copy(%g) {dtype = bf16} : tensor<16x8xbf16> <tp: S(1)>
  return %y : tensor<16x8xbf16>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xbf16> {
// |   %y = aten._to_copy(%x) {dtype = bf16} : tensor<16x8xbf16> <tp: S(0)>
// |   %y.all_to_all = spmd.all_to_all %y on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
// |   return %y.all_to_all : tensor<16x8xbf16>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not before the cast to the larger type.
func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
  %y = aten._to_copy(%g) {dtype = f32} : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %g = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xbf16> <tp: S(1)>
// |   %y = aten._to_copy(%g) {dtype = f32} : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
