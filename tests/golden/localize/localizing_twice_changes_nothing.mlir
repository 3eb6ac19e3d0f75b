// RUN: spmd-opt %s --localize --localize
spmd.mesh @mesh <tp = 3>

func.func @main(%x: tensor<7xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<7xf32> {
  %0 = aten.neg(%x) : tensor<7xf32> <tp: S(0)>
  return %0 : tensor<7xf32>
}

// | spmd.mesh @mesh <tp = 3>
// |
// | func.func @main(%x: tensor<?xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.of = #spmd.shapes<{of = [[7]]}>}) -> tensor<?xf32> attributes {spmd.stage = "local"} {
// |   %0 = aten.neg(%x) : tensor<?xf32> <tp: S(0)> of [7]
// |   return %0 : tensor<?xf32>
// | }
