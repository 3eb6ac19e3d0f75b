// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard="topology=flat" --localize

spmd.mesh @mesh <ep = 3>

func.func @f(%x: tensor<10x4xf32> {spmd.sharding = #spmd.sharding<@mesh, ep: Ragged(0, [1, 6, 3])>},
             %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<10x6xf32> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) {
  %0 = aten.mm(%x, %w) : tensor<10x6xf32>
  %1 = aten.relu(%0) : tensor<10x6xf32>
  return %1 : tensor<10x6xf32>
}

// | spmd.mesh @mesh <ep = 3>
// |
// | func.func @f(%x: tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, ep: Ragged(0, [1, 6, 3])>, spmd.of = #spmd.shapes<{of = [[10, 4]]}>},
// |              %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<?x6xf32> {spmd.sharding = #spmd.sharding<@mesh, ep: S(0)>}) attributes {spmd.stage = "local"} {
// |   %x.reshard = spmd.exchange %x : tensor<?x4xf32> <ep: S(0)> of [10, 4]
// |   %0 = aten.mm(%x.reshard, %w) : tensor<?x6xf32> <ep: S(0)> of [10, 6]
// |   %1 = aten.relu(%0) : tensor<?x6xf32> <ep: S(0)> of [10, 6]
// |   return %1 : tensor<?x6xf32>
// | }
// ! %s:5:1: remark: lower-reshard uses flat, but propagate used h100x8
