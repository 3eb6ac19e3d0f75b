// RUN: spmd-opt %s -p "propagate{memory=none,origins=true},outline-layers" --verify-diagnostics
spmd.mesh @mesh <tp = 2>

// expected-error@below {{the function has spmd.given, whose names would be lost in outlined layers}}
func.func @main(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %layers.0.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.0.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %layers.1.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.1.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %layers.2.a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %layers.2.b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4x8xf32> {
  %0 = aten.mm(%x, %layers.0.a) : tensor<4x8xf32>
  %1 = aten.relu(%0) : tensor<4x8xf32>
  %2 = aten.mm(%1, %layers.0.b) : tensor<4x8xf32>
  %layers.0.b.t = aten.t(%layers.0.b) : tensor<8x8xf32>
  %3 = aten.relu(%2) : tensor<4x8xf32>
  %4 = aten.add.Tensor(%x, %3) : tensor<4x8xf32>
  %5 = aten.mm(%4, %layers.1.a) : tensor<4x8xf32>
  %6 = aten.relu(%5) : tensor<4x8xf32>
  %7 = aten.mm(%6, %layers.1.b) : tensor<4x8xf32>
  %layers.1.b.t = aten.t(%layers.1.b) : tensor<8x8xf32>
  %8 = aten.relu(%7) : tensor<4x8xf32>
  %9 = aten.add.Tensor(%4, %8) : tensor<4x8xf32>
  %10 = aten.mm(%9, %layers.2.a) : tensor<4x8xf32>
  %11 = aten.relu(%10) : tensor<4x8xf32>
  %12 = aten.mm(%11, %layers.2.b) : tensor<4x8xf32>
  %layers.2.b.t = aten.t(%layers.2.b) : tensor<8x8xf32>
  %13 = aten.relu(%12) : tensor<4x8xf32>
  %14 = aten.add.Tensor(%9, %13) : tensor<4x8xf32>
  return %14 : tensor<4x8xf32>
}
