// RUN: spmd-opt %s --localize --split-async
spmd.mesh @mesh <dp = 2>

// What is rounded to bf16 and back is another value; nobody may take the value before for it.
func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %q = spmd.convert %x : tensor<8x4xf32> <dp: Shadow(bf16)>
  %r = spmd.convert %q : tensor<8x4xf32> <>
  %y = aten.relu(%r) : tensor<8x4xf32> <>
  %z = aten.relu(%x) : tensor<8x4xf32> <>
  return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<8x4xf32>, tensor<8x4xf32>) attributes {spmd.stage = "scheduled"} {
// |   %q = spmd.convert %x : tensor<8x4xbf16> <dp: Shadow(bf16)> of [8, 4, f32]
// |   %r = spmd.convert %q : tensor<8x4xf32> <>
// |   %y = aten.relu(%r) : tensor<8x4xf32> <>
// |   %z = aten.relu(%x) : tensor<8x4xf32> <>
// |   return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
// | }
