// RUN: spmd-opt %s --outline-layers
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %layers.0.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.0.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %layers.1.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.1.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %layers.2.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.2.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4x8xf32> {
  %0 = aten.mm(%x, %layers.0.a) : tensor<4x8xf32> <tp: S(1)>
  %1 = aten.relu(%0) : tensor<4x8xf32> <tp: S(1)>
  %2 = aten.mm(%1, %layers.0.b) : tensor<4x8xf32> <tp: P(sum)>
  %layers.0.b.t = aten.t(%layers.0.b) : tensor<8x8xf32> <tp: S(1)>
  %3 = spmd.all_reduce %2 on [tp] op sum : tensor<4x8xf32> <>
  %4 = aten.add.Tensor(%x, %3) : tensor<4x8xf32> <>
  %5 = aten.mm(%4, %layers.1.a) : tensor<4x8xf32> <tp: S(1)>
  %6 = aten.relu(%5) : tensor<4x8xf32> <tp: S(1)>
  %7 = aten.mm(%6, %layers.1.b) : tensor<4x8xf32> <tp: P(sum)>
  %layers.1.b.t = aten.t(%layers.1.b) : tensor<8x8xf32> <tp: S(1)>
  %8 = spmd.all_reduce %7 on [tp] op sum : tensor<4x8xf32> <>
  %9 = aten.add.Tensor(%4, %8) : tensor<4x8xf32> <>
  %10 = aten.mm(%9, %layers.2.a) : tensor<4x8xf32> <tp: S(1)>
  %11 = aten.relu(%10) : tensor<4x8xf32> <tp: S(1)>
  %12 = aten.mm(%11, %layers.2.b) : tensor<4x8xf32> <tp: P(sum)>
  %layers.2.b.t = aten.t(%layers.2.b) : tensor<8x8xf32> <tp: S(1)>
  %13 = spmd.all_reduce %12 on [tp] op sum : tensor<4x8xf32> <>
  %14 = aten.add.Tensor(%9, %13) : tensor<4x8xf32> <>
  return %14 : tensor<4x8xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | #replicated = #spmd.sharding<@mesh>
// | #tp_S1 = #spmd.sharding<@mesh, tp: S(1)>
// | #tp_S0 = #spmd.sharding<@mesh, tp: S(0)>
// |
// | func.func private @layers_forward(%x: tensor<4x8xf32> {spmd.sharding = #replicated}, %a: tensor<8x8xf32> {spmd.sharding = #tp_S1}, %b: tensor<8x8xf32> {spmd.sharding = #tp_S0}) -> (tensor<4x8xf32> {spmd.sharding = #replicated}) attributes {spmd.layer = "layers.0"} {
// |   %0 = aten.mm(%x, %a) : tensor<4x8xf32> <tp: S(1)>
// |   %1 = aten.relu(%0) : tensor<4x8xf32> <tp: S(1)>
// |   %2 = aten.mm(%1, %b) : tensor<4x8xf32> <tp: P(sum)>
// |   %b.t = aten.t(%b) : tensor<8x8xf32> <tp: S(1)>
// |   %3 = spmd.all_reduce %2 on [tp] op sum : tensor<4x8xf32> <>
// |   %4 = aten.add.Tensor(%x, %3) : tensor<4x8xf32> <>
// |   return %4 : tensor<4x8xf32>
// | }
// |
// | func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #replicated},
// |                 %layers.0.a: tensor<8x8xf32> {spmd.sharding = #tp_S1}, %layers.0.b: tensor<8x8xf32> {spmd.sharding = #tp_S0},
// |                 %layers.1.a: tensor<8x8xf32> {spmd.sharding = #tp_S1}, %layers.1.b: tensor<8x8xf32> {spmd.sharding = #tp_S0},
// |                 %layers.2.a: tensor<8x8xf32> {spmd.sharding = #tp_S1}, %layers.2.b: tensor<8x8xf32> {spmd.sharding = #tp_S0}) -> tensor<4x8xf32> {
// |   %4 = func.call @layers_forward(%x, %layers.0.a, %layers.0.b) {spmd.layer = "layers.0"} : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   %9 = func.call @layers_forward(%4, %layers.1.a, %layers.1.b) {spmd.layer = "layers.1"} : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   %14 = func.call @layers_forward(%9, %layers.2.a, %layers.2.b) {spmd.layer = "layers.2"} : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// |   return %14 : tensor<4x8xf32>
// | }
