// RUN: spmd-opt %s --localize --verify-spmd
// A sum becomes an average by what each rank does to its own shard, so no rank can wait for another one there.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>}, %y: tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(avg)>}) {
  %s = spmd.all_reduce_start %x on [dp, tp] op sum : !spmd.pending<tensor<6x2xf64>> <>
  %c = spmd.convert %y : tensor<6x2xf64> <dp: P(avg)>
  %r = spmd.wait %s : tensor<6x2xf64> <>
  return %r, %c : tensor<6x2xf64>, tensor<6x2xf64>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @main(%x: tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: P(sum)>},
// |                 %y: tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<6x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: P(avg)>}) attributes {spmd.stage = "local"} {
// |   %s = spmd.all_reduce_start %x on [dp, tp] op sum : !spmd.pending<tensor<6x2xf64>> <>
// |   %c = spmd.convert %y : tensor<6x2xf64> <dp: P(avg)>
// |   %r = spmd.wait %s : tensor<6x2xf64> <>
// |   return %r, %c : tensor<6x2xf64>, tensor<6x2xf64>
// | }
