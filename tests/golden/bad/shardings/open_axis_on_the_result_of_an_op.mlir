// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'aten.relu': <dp: ?> leaves axis 'dp' open; only arguments and constraints may have open axes}}
  %0 = aten.relu(%x) : tensor<16x8xf32> <dp: ?>
  return
}
