// RUN: spmd-opt %s --propagate --insert-reshard --lower-reshard --localize

// Rows that are dealt out stay so through a product and a view of the columns, and are sharded by columns at the end.
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<10x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 2)>},
             %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<10x2x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten.mm(%x, %w) : tensor<10x6xf32>
  %1 = aten.view(%0) {size = [10, 2, 3]} : tensor<10x2x3xf32>
  return %1 : tensor<10x2x3xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @f(%x: tensor<?x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(0, 2)>, spmd.of = #spmd.shapes<{of = [[10, 4]]}>},
// |              %w: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<10x1x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "local"} {
// |   %0 = aten.mm(%x, %w) : tensor<?x6xf32> <tp: Cyclic(0, 2)> of [10, 6]
// |   %1 = aten.view(%0) {size = [size(10, tp: Cyclic(0, 2)), 2, 3]} : tensor<?x2x3xf32> <tp: Cyclic(0, 2)> of [10, 2, 3]
// |   %_1.reshard = spmd.all_to_all %1 on [tp] from 0 to 1 : tensor<10x1x3xf32> <tp: S(1)>
// |   return %_1.reshard : tensor<10x1x3xf32>
// | }
