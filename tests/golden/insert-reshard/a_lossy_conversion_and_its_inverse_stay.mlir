// RUN: spmd-opt %s --propagate --insert-reshard
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
// | func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<8x4xf32> <dp: Shadow(bf16)>
// |   %x.reshard_1 = spmd.reshard %x.reshard : tensor<8x4xf32> <dp: S(0)>
// |   %y = aten.relu(%x.reshard_1) : tensor<8x4xf32> <dp: S(0)>
// |   %z = aten.relu(%x) : tensor<8x4xf32> <dp: S(0)>
// |   return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
// | }
