// RUN: spmd-opt %s --verify-diagnostics

func.func @f(%x: tensor<16x8xf32>) {
  // expected-error@+1 {{the module declares no mesh; add `spmd.mesh}}
  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: S(0)>
  return
}
