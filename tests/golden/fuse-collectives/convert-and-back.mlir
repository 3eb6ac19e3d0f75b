// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=convert-and-back"
spmd.mesh @mesh <tp = 4>

// The step back undoes a step.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>}) -> tensor<16x8xf32> {
  %s = spmd.convert %x : tensor<16x8xf32> <tp: P(sum)>
  %y = spmd.convert %s : tensor<16x8xf32> <tp: P(avg)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(avg)>}) -> tensor<16x8xf32> {
// |   return %x : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if it leads elsewhere: a sum that is to be sent as bytes is.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
  %q = spmd.convert %x : tensor<16x8xf32> <tp: Quantised>
  %y = spmd.convert %q : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<16x8xf32> {
// |   %q = spmd.convert %x : tensor<16x8xf32> <tp: Quantised>
// |   %y = spmd.convert %q : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <tp = 4>

// Not if the value in between is lossy: what is converted to bf16 and back is rounded.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %q = spmd.convert %x : tensor<16x8xf32> <tp: Shadow(bf16)>
  %y = spmd.convert %q : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   %q = spmd.convert %x : tensor<16x8xf32> <tp: Shadow(bf16)>
// |   %y = spmd.convert %q : tensor<16x8xf32> <>
// |   return %y : tensor<16x8xf32>
// | }
