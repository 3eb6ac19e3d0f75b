// RUN: spmd-opt %s --verify-diagnostics

func.func @f(%x: tensor<16x8xf32>) {
  // expected-error@+1 {{has a sharding, but the module declares no mesh; expected one: add `spmd.mesh @mesh <dp = 2>` with the axes}}
  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: S(0)>
  return
}
