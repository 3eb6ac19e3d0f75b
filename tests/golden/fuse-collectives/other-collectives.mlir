// RUN: spmd-opt %s --split-input-file --fuse-collectives="rewrites=%S/other-collectives.rewrites only=permute-twice,permute-around-f,exchange-of-gather,exchange-before-f,rearrange-twice,gather-of-moved,wait-at-once,slice-of-wait,broadcast-twice"
spmd.mesh @mesh <dp = 2, tp = 4>

// Two permutes that undo each other.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8x8xf32> {
  %a = spmd.permute %x : tensor<8x8xf32> <tp: S(0), dp: S(0)>
  %y = spmd.permute %a : tensor<8x8xf32> <dp: S(0), tp: S(0)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8x8xf32> {
// |   return %x : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// An op keeps the nesting order of its operand.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8x8xf32> {
  %a = spmd.permute %x : tensor<8x8xf32> <tp: S(0), dp: S(0)>
  %b = aten.gelu(%a) : tensor<8x8xf32> <tp: S(0), dp: S(0)>
  %y = spmd.permute %b : tensor<8x8xf32> <dp: S(0), tp: S(0)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<8x8xf32> {
// |   %b = aten.gelu(%x) : tensor<8x8xf32> <dp: S(0), tp: S(0)>
// |   return %b : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// An exchange gets straight from the shards what a gather has put together.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
  %a = spmd.all_gather %x on [tp] dim 1 : tensor<8x8xf32> <dp: S(0)>
  %y = spmd.exchange %a : tensor<8x8xf32> <dp: S(1), tp: S(0)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
// |   %y = spmd.exchange %x : tensor<8x8xf32> <tp: S(0), dp: S(1)>
// |   return %y : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// The exchange goes to where elements are smaller.
func.func @main(%x: tensor<8x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
  %f = aten._to_copy(%x) {dtype = f32} : tensor<8x8xf32> <dp: S(0), tp: S(1)>
  %y = spmd.exchange %f : tensor<8x8xf32> <tp: S(0), dp: S(1)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
// |   %x.exchange = spmd.exchange %x : tensor<8x8xbf16> <tp: S(0), dp: S(1)>
// |   %f = aten._to_copy(%x.exchange) {dtype = f32} : tensor<8x8xf32> <tp: S(0), dp: S(1)>
// |   return %f : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not past a reduction over a dimension that the exchange shards: no strategy of the rule has both.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8xf32> {
  %f = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<8xf32> <dp: S(0), tp: P(sum)>
  %y = spmd.exchange %f : tensor<8xf32> <tp: S(0)>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8xf32> {
// |   %f = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<8xf32> <dp: S(0), tp: P(sum)>
// |   %y = spmd.exchange %f : tensor<8xf32> <tp: S(0)>
// |   return %y : tensor<8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Two local rearrangements of a replicated value.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  %a = spmd.rearrange %x : tensor<8x8xf32> <dp: S(0)>
  %y = spmd.rearrange %a : tensor<8x8xf32> <dp: S(0), tp: S(1)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
// |   %y = spmd.rearrange %x : tensor<8x8xf32> <dp: S(0), tp: S(1)>
// |   return %y : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Nothing runs between the start of the reduction and the wait.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<8x8xf32> {
  %a = spmd.all_reduce_start %x on [tp] op sum : !spmd.pending<tensor<8x8xf32>> <>
  %y = spmd.wait %a : tensor<8x8xf32> <>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<8x8xf32> {
// |   %y = spmd.all_reduce %x on [tp] op sum : tensor<8x8xf32> <>
// |   return %y : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Gathered asynchronously for a shard that was there.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8xf32> {
  %a = spmd.all_gather_start %x on [tp] dim 0 : !spmd.pending<tensor<8x8xf32>> <>
  %b = spmd.wait %a : tensor<8x8xf32> <>
  %y = spmd.slice %b on [tp] dim 0 : tensor<8x8xf32> <tp: S(0)>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<8x8xf32> {
// |   return %x : tensor<8x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// One broadcast over both axes.
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  %a = spmd.broadcast %x on [tp] : tensor<8x8xf32> <>
  %y = spmd.broadcast %a on [dp] : tensor<8x8xf32> <>
  return %y : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
// |   %y = spmd.broadcast %x on [tp, dp] : tensor<8x8xf32> <>
// |   return %y : tensor<8x8xf32>
// | }
