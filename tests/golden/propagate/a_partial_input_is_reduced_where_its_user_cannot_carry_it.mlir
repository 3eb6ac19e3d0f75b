// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, %y: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.sub.Tensor(%x, %y) : tensor<64x64xf32>
  %1 = aten.mul.Tensor(%x, %y) : tensor<64x64xf32>
  return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>},
// |              %y: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "resharded", spmd.decided_by = "propagate{topology=flat}"} {
// |   %x.reshard = spmd.reshard %x : tensor<64x64xf32> <tp: S(0)>
// |   %y.reshard = spmd.reshard %y : tensor<64x64xf32> <tp: S(0)>
// |   %0 = aten.sub.Tensor(%x.reshard, %y.reshard) : tensor<64x64xf32> <tp: S(0)>
// |   %1 = aten.mul.Tensor(%x.reshard, %y.reshard) : tensor<64x64xf32> <tp: S(0)>
// |   %_0.reshard = spmd.reshard %0 : tensor<64x64xf32> <tp: P(sum)>
// |   %_1.reshard = spmd.reshard %1 : tensor<64x64xf32> <>
// |   return %_0.reshard, %_1.reshard : tensor<64x64xf32>, tensor<64x64xf32>
// | }
