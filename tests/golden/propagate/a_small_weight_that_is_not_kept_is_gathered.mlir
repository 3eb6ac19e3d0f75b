// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %t = aten.t(%w) : tensor<64x64xf32>
  %0 = aten.mm(%x, %t) : tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %w.reshard = spmd.reshard %w : tensor<64x64xf32> <>
// |   %t = aten.t(%w.reshard) : tensor<64x64xf32> <>
// |   %0 = aten.mm(%x, %t) : tensor<4096x64xf32> <tp: S(0)>
// |   return %0 : tensor<4096x64xf32>
// | }
