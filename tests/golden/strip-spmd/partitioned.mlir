// RUN: spmd-opt %s --lower-reshard --print-rules --strip-spmd
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.name = "input"},
                %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.name = "layer.weight"})
    -> (tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>, spmd.name = "out"}) {
  %a = spmd.slice %x on [tp] dim 1 : tensor<16x8xf32> <dp: S(0), tp: S(1)>
  %b = aten.mm(%a, %w) : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
  %c = spmd.all_reduce_start %b on [tp] op sum : !spmd.pending<tensor<16x8xf32>> <dp: S(0)>
  %d = spmd.wait %c : tensor<16x8xf32> <dp: S(0)>
  %e = aten.relu(%d) : tensor<16x8xf32> <dp: S(0)> needs (<>)
  %f = spmd.reshard %e : tensor<16x8xf32> <>
  %g = spmd.constraint %f : tensor<16x8xf32> <dp: S(1)>
  return %g : tensor<16x8xf32>
}

// | func.func @main(%x: tensor<16x8xf32> {spmd.name = "input"},
// |                 %w: tensor<8x8xf32> {spmd.name = "layer.weight"}) -> (tensor<16x8xf32> {spmd.name = "out"}) {
// |   %b = aten.mm(%x, %w) : tensor<16x8xf32>
// |   %e = aten.relu(%b) : tensor<16x8xf32>
// |   return %e : tensor<16x8xf32>
// | }
