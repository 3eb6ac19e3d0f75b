// RUN: spmd-opt %s --verify-diagnostics
spmd.mesh @mesh <tp = 2>

func.func private @h_forward(%a: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                             %b: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<8x8xf32> attributes {spmd.layer = "h.0"} {
  %mm = aten.mm(%a, %b) : tensor<8x8xf32> <tp: S(1)>
  return %mm : tensor<8x8xf32>
}

func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
                %h.0.w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'func.call': operand %h.0.w is <tp: S(1)>; expected <>, as argument %a of @h_forward: pass operands in the order of the arguments, with their shardings}}
  %mm = func.call @h_forward(%h.0.w, %x) {spmd.layer = "h.0"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %mm : tensor<8x8xf32>
}
