// RUN: spmd-opt %s --split-input-file --propagate
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @major_dp(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<64x32xf32> {
  %0 = aten.cos(%x) : tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @major_dp(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.cos(%x) : tensor<64x32xf32> <dp: S(0), tp: S(0)>
// |   return %0 : tensor<64x32xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @major_tp(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) -> tensor<64x32xf32> {
  %0 = aten.t(%x) : tensor<32x64xf32>
  %1 = aten.cos(%0) : tensor<32x64xf32>
  %2 = aten.t(%1) : tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @major_tp(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.t(%x) : tensor<32x64xf32> <tp: S(1), dp: S(1)>
// |   %1 = aten.cos(%0) : tensor<32x64xf32> <tp: S(1), dp: S(1)>
// |   %2 = aten.t(%1) : tensor<64x32xf32> <tp: S(0), dp: S(0)>
// |   return %2 : tensor<64x32xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Two orders meet: one operand is permuted, by its need.
func.func @both(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}, %y: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) {
  %0 = aten.mul.Tensor(%x, %y) : tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @both(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>},
// |                 %y: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.mul.Tensor(%x, %y) : tensor<64x32xf32> <tp: S(0), dp: S(0)> needs (_, <tp: S(0), dp: S(0)>)
// |   return %0 : tensor<64x32xf32>
// | }
