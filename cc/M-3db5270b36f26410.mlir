// Decided for M on the mesh <dp = 1>, traced by torch 2.13.0+cpu, by the passes
// inline,propagate{overlap=messages topology=cpu-gloo}
// Shardings may be edited; what is computed may not. Delete the file to have it decided again.
spmd.mesh @mesh <dp = 1>

func.func @main(%up.weight: tensor<16x8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %up.bias: tensor<16xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %down.weight: tensor<8x16xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %down.bias: tensor<8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %tangents.0: tensor<4x8xf32> {spmd.kind = "tangent", spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<16x8xf32> {spmd.name = "grad.up.weight", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<16xf32> {spmd.name = "grad.up.bias", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8x16xf32> {spmd.name = "grad.down.weight", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<8xf32> {spmd.name = "grad.down.bias", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.decided_by = "propagate{topology=cpu-gloo overlap=messages}"} {
  %t = aten.t(%up.weight) : tensor<8x16xf32> <> needs (<>)
  %addmm = aten.addmm(%up.bias, %x, %t) : tensor<4x16xf32> <> needs (<>, <>, _)
  %relu = aten.relu(%addmm) : tensor<4x16xf32> <>
  %t_1 = aten.t(%down.weight) : tensor<16x8xf32> <> needs (<>)
  %addmm_1 = aten.addmm(%down.bias, %relu, %t_1) : tensor<4x8xf32> <> needs (<>, _, _)
  %t_2 = aten.t(%t_1) : tensor<8x16xf32> <>
  %mm = aten.mm(%tangents.0, %t_2) : tensor<4x16xf32> <>
  %t_3 = aten.t(%tangents.0) : tensor<8x4xf32> <>
  %mm_1 = aten.mm(%t_3, %relu) : tensor<8x16xf32> <>
  %t_4 = aten.t(%mm_1) : tensor<16x8xf32> <>
  %sum_1 = aten.sum.dim_IntList(%tangents.0) {dim = [0], keepdim = true} : tensor<1x8xf32> <>
  %view = aten.view(%sum_1) {size = [8]} : tensor<8xf32> <>
  %t_5 = aten.t(%t_4) : tensor<8x16xf32> <>
  %threshold_backward = aten.threshold_backward(%mm, %relu) {threshold = 0} : tensor<4x16xf32> <>
  %t_6 = aten.t(%threshold_backward) : tensor<16x4xf32> <>
  %mm_2 = aten.mm(%t_6, %x) : tensor<16x8xf32> <> needs (_, <>)
  %t_7 = aten.t(%mm_2) : tensor<8x16xf32> <>
  %sum_2 = aten.sum.dim_IntList(%threshold_backward) {dim = [0], keepdim = true} : tensor<1x16xf32> <>
  %view_1 = aten.view(%sum_2) {size = [16]} : tensor<16xf32> <>
  %t_8 = aten.t(%t_7) : tensor<16x8xf32> <>
  return %addmm_1, %t_8, %view_1, %t_5, %view : tensor<4x8xf32>, tensor<16x8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<8xf32>
}
