// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=convert-after"
spmd.mesh @mesh <tp = 4>

// One row is sent in place of all.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %y = aten.select.int(%r) {dim = 0, index = 1} : tensor<8xf32> <>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8xf32> {
// |   %y = aten.select.int(%x) {dim = 0, index = 1} : tensor<8xf32> <tp: Quantised>
// |   %y.convert = spmd.convert %y : tensor<8xf32> <>
// |   return %y.convert : tensor<8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Two operands are sent as one.
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
// |   %y = aten.add.Tensor(%x, %w) : tensor<16x8xf32> <tp: Quantised>
// |   %y.convert = spmd.convert %y : tensor<16x8xf32> <>
// |   return %y.convert : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the op does not pass the partial sum.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8xf32> {
  %r = spmd.convert %x : tensor<16x8xf32> <>
  %y = aten.amax(%r) {dim = [0]} : tensor<8xf32> <>
  return %y : tensor<8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<8xf32> {
// |   %r = spmd.convert %x : tensor<16x8xf32> <>
// |   %y = aten.amax(%r) {dim = [0]} : tensor<8xf32> <>
// |   return %y : tensor<8xf32>
// | }
