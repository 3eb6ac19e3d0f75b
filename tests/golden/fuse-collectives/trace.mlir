// RUN: spmd-opt %s --split-input-file --fuse-collectives="trace=true only=exchange,gather-of-f-of-slice,slice-before,all-reduce-after"
spmd.mesh @mesh <dp = 2, tp = 4>

// Applied, with the four costs that are compared in this order.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp] dim 1 : tensor<16x8xf32> <tp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %y = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
// ! %s:7:3: remark: exchange at %y = spmd.slice: applied: wire bytes 384 → 96, collectives 1 → 1, bytes touched 512 → 128, ops 2 → 1, microseconds 10.4028 → 10.4007
// ! %s:5:1: remark: no op has the form of the left side of all-reduce-after, gather-of-f-of-slice, slice-before

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// `d != e` fails.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  %y = spmd.slice %g on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %g = spmd.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
// |   %y = spmd.slice %g on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
// ! %s:26:3: remark: exchange at %y = spmd.slice: condition 'd != e' fails: both are 0
// ! %s:24:1: remark: no op has the form of the left side of all-reduce-after, gather-of-f-of-slice, slice-before

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// `f is cheap` fails.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %f = aten.mm(%s, %w) : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %f on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   %f = aten.mm(%s, %w) : tensor<16x8xf32> <tp: S(0)>
// |   %y = spmd.all_gather %f on [tp] dim 0 : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
// ! %s:47:3: remark: gather-of-f-of-slice at %y = spmd.all_gather: condition 'f is cheap' fails for aten.mm
// ! %s:44:1: remark: no op has the form of the left side of all-reduce-after, exchange, slice-before

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A collective of the right side is not a legal transition, or f is not well typed.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %f = aten.flip(%x) {dims = [0]} : tensor<16x8xf32> <>
  %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %f = aten.flip(%x) {dims = [0]} : tensor<16x8xf32> <>
// |   %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y : tensor<16x8xf32>
// | }
// ! %s:69:3: remark: slice-before at %y = spmd.slice: does not type-check: no strategy of aten.flip has such operands on axis tp and gives <tp: S(0)>
// ! %s:67:1: remark: no op has the form of the left side of all-reduce-after, exchange, gather-of-f-of-slice

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// f has another user, so it would run twice.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %f = aten.gelu(%x) : tensor<16x8xf32> <>
  %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  return %y, %f : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %f = aten.gelu(%x) : tensor<16x8xf32> <>
// |   %y = spmd.slice %f on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   return %y, %f : tensor<16x8xf32>, tensor<16x8xf32>
// | }
// ! %s:89:3: remark: slice-before at %y = spmd.slice: f = aten.gelu has other users, so it would run twice
// ! %s:87:1: remark: no op has the form of the left side of all-reduce-after, exchange, gather-of-f-of-slice

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Well typed, and not cheaper: the result is no smaller than the operand.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = aten.neg(%r) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %r = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = aten.neg(%r) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
// ! %s:109:3: remark: all-reduce-after at %y = aten.neg: does not pay: wire bytes 768 → 768, collectives 1 → 1, bytes touched 512 → 512, ops 2 → 2, microseconds 12.2058 → 12.2058
// ! %s:107:1: remark: no op has the form of the left side of exchange, gather-of-f-of-slice, slice-before
