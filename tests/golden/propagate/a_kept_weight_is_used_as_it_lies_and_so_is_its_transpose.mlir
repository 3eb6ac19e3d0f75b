// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %t = aten.t(%w) : tensor<64x64xf32>
  %0 = aten.mm(%x, %t) : tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %t = aten.t(%w) : tensor<64x64xf32> <tp: S(1)>
// |   %x.reshard = spmd.reshard %x : tensor<4096x64xf32> <>
// |   %0 = aten.mm(%x.reshard, %t) : tensor<4096x64xf32> <tp: S(1)>
// |   %_0.reshard = spmd.reshard %0 : tensor<4096x64xf32> <tp: S(0)>
// |   return %_0.reshard : tensor<4096x64xf32>
// | }
