// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=convert-after"
spmd.mesh @mesh <tp = 4>

// A product is gathered, which is narrower than what is multiplied.
func.func @main(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}, %w: tensor<64x2xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x2xf32> {
  %r = spmd.convert %x : tensor<16x64xf32> <>
  %y = aten.mm(%r, %w) : tensor<16x2xf32> <>
  return %y : tensor<16x2xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>},
// |                 %w: tensor<64x2xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x2xf32> {
// |   %y = aten.mm(%x, %w) : tensor<16x2xf32> <tp: Padded(0)>
// |   %y.convert = spmd.convert %y : tensor<16x2xf32> <>
// |   return %y.convert : tensor<16x2xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Two operands are converted as one.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>}, %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <tp: P(sum)>
  %s = spmd.convert %w : tensor<16x8xf32> <tp: P(sum)>
  %y = aten.add.Tensor(%r, %s) : tensor<16x8xf32> <tp: P(sum)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>},
// |                 %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>}) -> tensor<16x8xf32> {
// |   %y = aten.add.Tensor(%x, %w) : tensor<16x8xf32> <tp: P(avg)>
// |   %y.convert = spmd.convert %y : tensor<16x8xf32> <tp: P(sum)>
// |   return %y.convert : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the op does not pass the partial values.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %y = aten.amax(%r) {dim = [0]} : tensor<8xf32> <>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <>
// |   %y = aten.amax(%r) {dim = [0]} : tensor<8xf32> <>
// |   return %y : tensor<8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the step is lossy: the sum of two values that are sent as bytes is another one than each of them sent so.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}, %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %s = spmd.convert %w : tensor<16x8xf32> <>
  %y = aten.add.Tensor(%r, %s) : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>},
// |                 %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <>
// |   %s = spmd.convert %w : tensor<16x8xf32> <>
// |   %y = aten.add.Tensor(%r, %s) : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
