// RUN: spmd-opt %s --propagate="topology=flat"
spmd.mesh @mesh <dp = 2, tp = 4>

// On dp the argument, the op and the constraint are told; on tp they are left open, and follow the weight.
func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>}, %w: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: ?, tp: S(1)>}) {
  %0 = aten.mm(%x, %w) : tensor<64x256xf32>
  %1 = spmd.constraint %0 : tensor<64x256xf32> <dp: S(1), tp: ?>
  %2 = aten.relu(%1) : tensor<64x256xf32>
  %3 = aten.cos(%2) : tensor<64x256xf32> <dp: S(1), tp: S(1)>
  return %3 : tensor<64x256xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |              %w: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(1)>}) attributes {spmd.stage = "decided", spmd.decided_by = "propagate{topology=flat}"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   %1 = spmd.constraint %0 : tensor<64x256xf32> <dp: S(1), tp: S(1)> needs (<dp: S(1), tp: S(1)>)
// |   %2 = aten.relu(%1) : tensor<64x256xf32> <dp: S(1), tp: S(1)>
// |   %3 = aten.cos(%2) : tensor<64x256xf32> <dp: S(1), tp: S(1)>
// |   return %3 : tensor<64x256xf32>
// | }
