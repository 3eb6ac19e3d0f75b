// RUN: spmd-opt %s --outline-layers
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %h.0.w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %h.1.w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %h.2.w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %h.3.w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %mm_0 = aten.mm(%x, %h.0.w) : tensor<4x8xf32> <tp: S(1)>
  %relu_0 = aten.relu(%mm_0) : tensor<4x8xf32> <tp: S(1)>
  %sin_0 = aten.sin(%relu_0) : tensor<4x8xf32> <tp: S(1)>
  %y_0 = aten.add.Tensor(%x, %sin_0) : tensor<4x8xf32> <> needs (_, <>)
  %mm_1 = aten.mm(%y_0, %h.1.w) : tensor<4x8xf32> <tp: S(1)>
  %relu_1 = aten.relu(%mm_1) : tensor<4x8xf32> <tp: S(1)>
  %sin_1 = aten.sin(%relu_1) : tensor<4x8xf32> <tp: S(1)>
  %y_1 = aten.add.Tensor(%y_0, %sin_1) : tensor<4x8xf32> <> needs (_, <>)
  %mm_2 = aten.mm(%y_1, %h.2.w) : tensor<4x8xf32> <>
  %relu_2 = aten.relu(%mm_2) : tensor<4x8xf32> <>
  %sin_2 = aten.sin(%relu_2) : tensor<4x8xf32> <>
  %y_2 = aten.add.Tensor(%y_1, %sin_2) : tensor<4x8xf32> <>
  %mm_3 = aten.mm(%y_2, %h.3.w) : tensor<4x8xf32> <tp: S(1)>
  %relu_3 = aten.relu(%mm_3) : tensor<4x8xf32> <tp: S(1)>
  %sin_3 = aten.sin(%relu_3) : tensor<4x8xf32> <tp: S(1)>
  %y_3 = aten.add.Tensor(%y_2, %sin_3) : tensor<4x8xf32> <> needs (_, <>)
  return %y_3 : tensor<4x8xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | #replicated = #spmd.sharding<@mesh>
// | #tp_S1 = #spmd.sharding<@mesh, tp: S(1)>
// |
// | func.func private @h_forward(%x: tensor<4x8xf32> {spmd.sharding = #replicated}, %w: tensor<8x8xf32> {spmd.sharding = #tp_S1}) -> (tensor<4x8xf32> {spmd.sharding = #replicated}) attributes {spmd.layer = "h.0"} {
// |   %mm_0 = aten.mm(%x, %w) : tensor<4x8xf32> <tp: S(1)>
// |   %relu_0 = aten.relu(%mm_0) : tensor<4x8xf32> <tp: S(1)>
// |   %sin_0 = aten.sin(%relu_0) : tensor<4x8xf32> <tp: S(1)>
// |   %y_0 = aten.add.Tensor(%x, %sin_0) : tensor<4x8xf32> <> needs (_, <>)
// |   return %y_0 : tensor<4x8xf32>
// | }
// |
// | func.func private @h_2_forward(%y_1: tensor<4x8xf32> {spmd.sharding = #replicated}, %w: tensor<8x8xf32> {spmd.sharding = #replicated}) -> (tensor<4x8xf32> {spmd.sharding = #replicated}) attributes {spmd.layer = "h.2"} {
// |   %mm_2 = aten.mm(%y_1, %w) : tensor<4x8xf32> <>
// |   %relu_2 = aten.relu(%mm_2) : tensor<4x8xf32> <>
// |   %sin_2 = aten.sin(%relu_2) : tensor<4x8xf32> <>
// |   %y_2 = aten.add.Tensor(%y_1, %sin_2) : tensor<4x8xf32> <>
// |   return %y_2 : tensor<4x8xf32>
// | }
// |
// | func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #replicated},
// |                 %h.0.w: tensor<8x8xf32> {spmd.sharding = #tp_S1},
// |                 %h.1.w: tensor<8x8xf32> {spmd.sharding = #tp_S1},
// |                 %h.2.w: tensor<8x8xf32> {spmd.sharding = #replicated},
// |                 %h.3.w: tensor<8x8xf32> {spmd.sharding = #tp_S1}) -> (tensor<4x8xf32> {spmd.sharding = #replicated}) {
// |   %y_0 = func.call @h_forward(%x, %h.0.w) {spmd.layer = "h.0"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   %y_1 = func.call @h_forward(%y_0, %h.1.w) {spmd.layer = "h.1"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   %y_2 = func.call @h_2_forward(%y_1, %h.2.w) {spmd.layer = "h.2"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   %y_3 = func.call @h_forward(%y_2, %h.3.w) {spmd.layer = "h.3"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   return %y_3 : tensor<4x8xf32>
// | }
