// RUN: spmd-opt %s --split-input-file --lower-reshard="topology=cpu-gloo"
// A ring of four takes six hops for an all-reduce; for 256 bytes a direct exchange is sooner done, though it sends more.

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<8x8xf32> {
  %0 = spmd.reshard %x : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<8x8xf32> attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.exchange %x : tensor<8x8xf32> <>
// |   return %0 : tensor<8x8xf32>
// | }

// -----

// Of megabytes it is the bytes that take the time.

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<4096x4096xf32> {
  %0 = spmd.reshard %x : tensor<4096x4096xf32> <>
  return %0 : tensor<4096x4096xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> tensor<4096x4096xf32> attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.all_reduce %x on [tp] op sum : tensor<4096x4096xf32> <>
// |   return %0 : tensor<4096x4096xf32>
// | }
