// RUN: spmd-opt %s --propagate="memory=1MB" --insert-reshard --lower-reshard
// Without a limit every rank gets all of both weights and keeps them for the second pair of products.
spmd.mesh @mesh <dp = 4, tp = 2>

func.func @main(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %w1: tensor<512x1024xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
                %w2: tensor<1024x512xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(0)>}) -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<64x1024xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32>
  %2 = aten.mm(%1, %w2) : tensor<64x512xf32>
  %3 = aten.mm(%2, %w1) : tensor<64x1024xf32>
  %4 = aten.gelu(%3) {approximate = "none"} : tensor<64x1024xf32>
  %5 = aten.mm(%4, %w2) : tensor<64x512xf32>
  return %5 : tensor<64x512xf32>
}

// | spmd.mesh @mesh <dp = 4, tp = 2>
// |
// | func.func @main(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %w1: tensor<512x1024xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |                 %w2: tensor<1024x512xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(1)>}) -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "lowered", spmd.decided_by = "propagate{memory=1000000}"} {
// |   %x.reshard = spmd.all_to_all %x on [dp] from 0 to 1 : tensor<64x512xf32> <dp: S(1)>
// |   %0 = aten.mm(%x.reshard, %w1) : tensor<64x1024xf32> <tp: S(1), dp: P(sum)>
// |   %_0.reshard = spmd.all_reduce %0 on [dp] op sum : tensor<64x1024xf32> <tp: S(1)>
// |   %1 = aten.gelu(%_0.reshard) {approximate = "none"} : tensor<64x1024xf32> <tp: S(1)>
// |   %2 = aten.mm(%1, %w2) : tensor<64x512xf32> <dp: S(1), tp: P(sum)>
// |   %_2.reshard = spmd.all_reduce %2 on [tp] op sum : tensor<64x512xf32> <dp: S(1)>
// |   %3 = aten.mm(%_2.reshard, %w1) : tensor<64x1024xf32> <tp: S(1), dp: P(sum)>
// |   %_3.reshard = spmd.all_reduce %3 on [dp] op sum : tensor<64x1024xf32> <tp: S(1)>
// |   %4 = aten.gelu(%_3.reshard) {approximate = "none"} : tensor<64x1024xf32> <tp: S(1)>
// |   %5 = aten.mm(%4, %w2) : tensor<64x512xf32> <dp: S(1), tp: P(sum)>
// |   %_5.all_reduce = spmd.all_reduce %5 on [tp] op sum : tensor<64x512xf32> <dp: S(1)>
// |   %_5.reshard = spmd.all_to_all %_5.all_reduce on [dp] from 1 to 0 : tensor<64x512xf32> <dp: S(0)>
// |   return %_5.reshard : tensor<64x512xf32>
// | }
