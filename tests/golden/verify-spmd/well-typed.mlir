// RUN: spmd-opt %s --split-input-file --verify-diagnostics --verify-spmd
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
                %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %a = aten.mm(%x, %w) : tensor<16x8xf32> <dp: S(0), tp: P(sum)>
  %b = spmd.all_reduce %a on [tp] op sum : tensor<16x8xf32> <dp: S(0)>
  return %b : tensor<16x8xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// What an op needs counts, not what its operand has yet; and a result may leave partial if it is asked for.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: P(sum)>}) {
  %a = aten.mm(%x, %w) : tensor<16x8xf32> <dp: S(0), tp: P(sum)> needs (<dp: S(0), tp: S(1)>, _)
  return %a : tensor<16x8xf32>
}
