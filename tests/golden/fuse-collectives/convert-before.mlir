// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=convert-before"
spmd.mesh @mesh <tp = 4>

// What is repeated is gathered before that.
func.func @main(%x: tensor<16x1xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
  %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: Padded(0)>
  %y = spmd.convert %e : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x1xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}) -> tensor<16x8xf32> {
// |   %x.convert = spmd.convert %x : tensor<16x1xf32> <>
// |   %e = aten.expand(%x.convert) {size = [16, 8]} : tensor<16x8xf32> <>
// |   return %e : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the op contracts, which every rank would repeat.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>}, %w: tensor<8x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x64xf32> {
  %e = aten.mm(%x, %w) : tensor<16x64xf32> <tp: Padded(0)>
  %y = spmd.convert %e : tensor<16x64xf32> <>
  return %y : tensor<16x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Padded(0)>},
// |                 %w: tensor<8x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x64xf32> {
// |   %e = aten.mm(%x, %w) : tensor<16x64xf32> <tp: Padded(0)>
// |   %y = spmd.convert %e : tensor<16x64xf32> <>
// |   return %y : tensor<16x64xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the step is lossy.
func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
  %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: Quantised>
  %y = spmd.convert %e : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<1x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Quantised>}) -> tensor<16x8xf32> {
// |   %e = aten.expand(%x) {size = [16, 8]} : tensor<16x8xf32> <tp: Quantised>
// |   %y = spmd.convert %e : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
