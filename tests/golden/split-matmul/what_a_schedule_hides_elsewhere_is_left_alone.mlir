// RUN: spmd-opt %s --split-matmul --verify-spmd
// A parameter can be gathered before, and its gradient is waited for by nothing.
spmd.mesh @mesh <dp = 4>

func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x4096xbf16>) {
  %g = spmd.all_gather %w on [dp] dim 1 : tensor<4096x4096xbf16> <>
  %y = aten.mm(%x, %g) : tensor<8192x4096xbf16> <dp: S(0)>
  %t = aten.t(%x) : tensor<4096x8192xbf16> <dp: S(1)>
  %d = aten.mm(%t, %y) : tensor<4096x4096xbf16> <dp: P(sum)>
  %s = spmd.reduce_scatter %d on [dp] dim 1 op sum : tensor<4096x4096xbf16> <dp: S(1)>
  return %y, %s : tensor<8192x4096xbf16>, tensor<4096x4096xbf16>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @main(%x: tensor<8192x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                 %w: tensor<4096x4096xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<8192x4096xbf16>, tensor<4096x4096xbf16>) {
// |   %g = spmd.all_gather %w on [dp] dim 1 : tensor<4096x4096xbf16> <>
// |   %y = aten.mm(%x, %g) : tensor<8192x4096xbf16> <dp: S(0)>
// |   %t = aten.t(%x) : tensor<4096x8192xbf16> <dp: S(1)>
// |   %d = aten.mm(%t, %y) : tensor<4096x4096xbf16> <dp: P(sum)>
// |   %s = spmd.reduce_scatter %d on [dp] dim 1 op sum : tensor<4096x4096xbf16> <dp: S(1)>
// |   return %y, %s : tensor<8192x4096xbf16>, tensor<4096x4096xbf16>
// | }
