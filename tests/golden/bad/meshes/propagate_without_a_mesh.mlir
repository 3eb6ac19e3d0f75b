// RUN: spmd-opt %s --propagate --verify-diagnostics
// expected-error@-1 {{the module declares no mesh; expected one}}

func.func @f(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = aten.relu(%x) : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
