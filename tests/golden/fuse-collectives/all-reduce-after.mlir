// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=all-reduce-after"
spmd.mesh @mesh <dp = 2, tp = 4>

// The sum of two all-reduces is the all-reduce of the sum, alpha kept.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %b = spmd.all_reduce %z on [tp] op sum : tensor<16x8xf32> <>
  %y = aten.add.Tensor(%a, %b) {alpha = 2} : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %y = aten.add.Tensor(%x, %z) {alpha = 2} : tensor<16x8xf32> <tp: P(sum)>
// |   %y.all_reduce = spmd.all_reduce %y on [tp] op sum : tensor<16x8xf32> <>
// |   return %y.all_reduce : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A linear op that makes the value smaller goes first.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %w: tensor<8x2xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x2xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = aten.mm(%a, %w) : tensor<16x2xf32> <>
  return %y : tensor<16x2xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %w: tensor<8x2xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x2xf32> {
// |   %y = aten.mm(%x, %w) : tensor<16x2xf32> <tp: P(sum)>
// |   %y.all_reduce = spmd.all_reduce %y on [tp] op sum : tensor<16x2xf32> <>
// |   return %y.all_reduce : tensor<16x2xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if one of the two is used too.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %b = spmd.all_reduce %z on [tp] op sum : tensor<16x8xf32> <>
  %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <>
  return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %b = spmd.all_reduce %z on [tp] op sum : tensor<16x8xf32> <>
// |   %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <>
// |   return %y, %a : tensor<16x8xf32>, tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not a product, which is linear in each factor alone, nor a narrowing cast.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xbf16> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %b = spmd.all_reduce %z on [tp] op sum : tensor<16x8xf32> <>
  %m = aten.mul.Tensor(%a, %b) : tensor<16x8xf32> <>
  %y = aten._to_copy(%m) {dtype = bf16} : tensor<16x8xbf16> <>
  return %y : tensor<16x8xbf16>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xbf16> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %b = spmd.all_reduce %z on [tp] op sum : tensor<16x8xf32> <>
// |   %m = aten.mul.Tensor(%a, %b) : tensor<16x8xf32> <>
// |   %y = aten._to_copy(%m) {dtype = bf16} : tensor<16x8xbf16> <>
// |   return %y : tensor<16x8xbf16>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not if the added value is not partial: it would be added by every rank.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %y = aten.add.Tensor(%a, %z) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %y = aten.add.Tensor(%a, %z) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not over different axes.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
  %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
  %b = spmd.all_reduce %z on [dp] op sum : tensor<16x8xf32> <>
  %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<16x8xf32> {
// |   %a = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %b = spmd.all_reduce %z on [dp] op sum : tensor<16x8xf32> <>
// |   %y = aten.add.Tensor(%a, %b) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
