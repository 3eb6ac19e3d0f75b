// RUN: spmd-opt %s --costs %S/a_table_of_costs_that_is_not_the_one_decided_by_is_told.costs --lower-reshard
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.decided_by = "propagate{costs=costs.txt costs-digest=0123456789ab}"} {
  %0 = spmd.reshard %x : tensor<64x64xf32> <tp: S(1)>
  return %0 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.decided_by = "propagate{costs=costs.txt costs-digest=0123456789ab}", spmd.stage = "lowered"} {
// |   %0 = spmd.exchange %x : tensor<64x64xf32> <tp: S(1)>
// |   return %0 : tensor<64x64xf32>
// | }
// ! %s:4:1: remark: lower-reshard uses a table of costs with digest da77ebeb2d91, but propagate used costs.txt with digest 0123456789ab; run propagate again, or give the same table
