// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard="topology=flat"
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  return %x : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %x.reshard = spmd.exchange %x : tensor<64x64xf32> <tp: S(1)>
// |   return %x.reshard : tensor<64x64xf32>
// | }
// ! %s:4:1: remark: lower-reshard uses flat, but propagate used h100x8
