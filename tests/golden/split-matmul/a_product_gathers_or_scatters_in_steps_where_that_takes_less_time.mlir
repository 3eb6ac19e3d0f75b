// RUN: spmd-opt %s --split-input-file --split-matmul --verify-spmd
// The rows that the first product needs are made by a product, and the second one is followed by one: both wait.
spmd.mesh @mesh <tp = 4>

func.func @large(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %up: tensor<4096x8192xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %in: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8192x4096xbf16> {
  %h = aten.mm(%x, %in) : tensor<8192x4096xbf16> <tp: S(0)>
  %g = spmd.all_gather %h on [tp] dim 0 : tensor<8192x4096xbf16> <>
  %a = aten.mm(%g, %up) : tensor<8192x8192xbf16> <tp: S(1)>
  %b = aten.mm(%a, %down) : tensor<8192x4096xbf16> <tp: P(sum)>
  %s = spmd.reduce_scatter %b on [tp] dim 0 op sum : tensor<8192x4096xbf16> <tp: S(0)>
  %y = aten.mm(%s, %in) : tensor<8192x4096xbf16> <tp: S(0)>
  return %y : tensor<8192x4096xbf16>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @large(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %up: tensor<4096x8192xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %down: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %in: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8192x4096xbf16> {
// |   %h = aten.mm(%x, %in) : tensor<8192x4096xbf16> <tp: S(0)>
// |   %a = aten.mm(%h, %up) : tensor<8192x8192xbf16> <tp: S(1)> attributes {spmd.split}
// |   %s = aten.mm(%a, %down) : tensor<8192x4096xbf16> <tp: S(0)> attributes {spmd.split}
// |   %y = aten.mm(%s, %in) : tensor<8192x4096xbf16> <tp: S(0)>
// |   return %y : tensor<8192x4096xbf16>
// | }

// -----
// Launching a kernel for each block takes longer than the gather.
spmd.mesh @mesh <tp = 4>

func.func @small(%x: tensor<64x32xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %up: tensor<32x64xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %in: tensor<32x32xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<64x64xbf16> {
  %h = aten.mm(%x, %in) : tensor<64x32xbf16> <tp: S(0)>
  %g = spmd.all_gather %h on [tp] dim 0 : tensor<64x32xbf16> <>
  %a = aten.mm(%g, %up) : tensor<64x64xbf16> <tp: S(1)>
  return %a : tensor<64x64xbf16>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @small(%x: tensor<64x32xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %up: tensor<32x64xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %in: tensor<32x32xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<64x64xbf16> {
// |   %h = aten.mm(%x, %in) : tensor<64x32xbf16> <tp: S(0)>
// |   %g = spmd.all_gather %h on [tp] dim 0 : tensor<64x32xbf16> <>
// |   %a = aten.mm(%g, %up) : tensor<64x64xbf16> <tp: S(1)>
// |   return %a : tensor<64x64xbf16>
// | }
