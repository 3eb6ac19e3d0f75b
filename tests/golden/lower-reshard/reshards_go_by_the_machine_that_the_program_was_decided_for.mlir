// RUN: spmd-opt %s --lower-reshard --split-input-file
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.decided_by = "propagate{topology=flat}"} {
  %0 = spmd.reshard %x : tensor<64x64xf32> <tp: S(1)>
  return %0 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.decided_by = "propagate{topology=flat}", spmd.stage = "lowered"} {
// |   %0 = spmd.exchange %x : tensor<64x64xf32> <tp: S(1)>
// |   return %0 : tensor<64x64xf32>
// | }

// -----
// Without a note it is h100x8, on which two short steps take less time.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = spmd.reshard %x : tensor<64x64xf32> <tp: S(1)>
  return %0 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %x.all_gather = spmd.all_gather %x on [dp, tp] dim 0 : tensor<64x64xf32> <>
// |   %0 = spmd.slice %x.all_gather on [tp] dim 1 : tensor<64x64xf32> <tp: S(1)>
// |   return %0 : tensor<64x64xf32>
// | }
