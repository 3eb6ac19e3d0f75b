// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2>

// What is rounded to bf16 and back is another value; nobody may take the value before for it.
func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %q = spmd.constraint %x : tensor<8x4xf32> <dp: Shadow(bf16)>
  %y = aten.relu(%q) : tensor<8x4xf32>
  %z = aten.relu(%x) : tensor<8x4xf32>
  return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %q = spmd.constraint %x : tensor<8x4xf32> <dp: Shadow(bf16)> needs (<dp: Shadow(bf16)>)
// |   %y = aten.relu(%q) : tensor<8x4xf32> <dp: S(0)> needs (<dp: S(0)>)
// |   %z = aten.relu(%x) : tensor<8x4xf32> <dp: S(0)>
// |   return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
// | }
