// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard --lower-reshard="topology=flat" --localize

// Sharded by tp first and by dp then, as FSDP over tensor parallelism does, and gathered over dp for its use.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Strided(1, 2), tp: S(1)>})
    -> (tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) {
  %0 = aten.mm(%x, %w) : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @f(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %w: tensor<8x2xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: Strided(1, 2), tp: S(1)>}) -> (tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) attributes {spmd.stage = "local", spmd.decided_by = "propagate{topology=flat}"} {
// |   %w.reshard = spmd.exchange %w : tensor<8x4xf32> <tp: S(1)>
// |   %0 = aten.mm(%x, %w.reshard) : tensor<2x4xf32> <dp: S(0), tp: S(1)>
// |   return %0 : tensor<2x4xf32>
// | }
