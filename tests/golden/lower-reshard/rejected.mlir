// RUN: spmd-opt %s --split-input-file --verify-diagnostics --lower-reshard
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16xf32> {
  // expected-error@+1 {{'spmd.constraint' leaves an axis open; expected a placement on each axis: run propagate first}}
  %y = spmd.constraint %x : tensor<16xf32> <dp: ?>
  return %y : tensor<16xf32>
}
// -----
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  // expected-error@+1 {{the resharded value has no sharding; expected one: run propagate first}}
  %y = spmd.reshard %x : tensor<16xf32> <dp: S(0)>
  return %y : tensor<16xf32>
}
// -----
spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{run lower-reshard before localize}}
func.func @main(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16xf32> attributes {spmd.stage = "local"} {
  return %x : tensor<16xf32>
}
