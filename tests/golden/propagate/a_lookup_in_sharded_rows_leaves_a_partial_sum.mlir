// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%table: tensor<50000x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %i: tensor<8x16xi64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) {
  %0 = aten.embedding(%table, %i) : tensor<8x16x64xf32>
  return %0 : tensor<8x16x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%table: tensor<50000x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %i: tensor<8x16xi64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<8x16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.embedding(%table, %i) : tensor<8x16x64xf32> <dp: S(0), tp: P(sum)>
// |   %_0.reshard = spmd.reshard %0 : tensor<8x16x64xf32> <dp: S(0), tp: S(1)>
// |   return %_0.reshard : tensor<8x16x64xf32>
// | }
