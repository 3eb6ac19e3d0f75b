// RUN: spmd-opt %s --split-input-file --lower-reshard
spmd.mesh @mesh <dp = 2, tp = 4>

// Whole and cut: one all-reduce serves both, where an all-reduce and a reduce-scatter would send half as much again.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %cut = spmd.reshard %x : tensor<16x8xf32> <tp: S(0)>
  %whole = spmd.reshard %x : tensor<16x8xf32> <>
  %a = aten.relu(%cut) : tensor<16x8xf32> <tp: S(0)>
  %b = aten.exp(%whole) : tensor<16x8xf32> <>
  return %a, %b : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) attributes {spmd.stage = "lowered"} {
// |   %whole = spmd.all_reduce %x on [tp] op sum : tensor<16x8xf32> <>
// |   %cut = spmd.slice %whole on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
// |   %a = aten.relu(%cut) : tensor<16x8xf32> <tp: S(0)>
// |   %b = aten.exp(%whole) : tensor<16x8xf32> <>
// |   return %a, %b : tensor<16x8xf32>, tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Whole and half: one all-gather over both axes, and the half is cut from it.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %whole = spmd.reshard %x : tensor<16x8xf32> <>
  %half = spmd.reshard %x : tensor<16x8xf32> <dp: S(0)>
  return %whole, %half : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) attributes {spmd.stage = "lowered"} {
// |   %whole = spmd.all_gather %x on [dp, tp] dim 0 : tensor<16x8xf32> <>
// |   %half = spmd.slice %whole on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
// |   return %whole, %half : tensor<16x8xf32>, tensor<16x8xf32>
// | }
