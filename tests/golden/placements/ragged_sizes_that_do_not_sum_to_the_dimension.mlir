// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <ep = 3>

func.func @f(%x: tensor<10x4xf32> {spmd.sharding = #spmd.sharding<@mesh, ep: Ragged(0, [1, 6, 3])>}) {
  // expected-error@+1 {{add up to 9; expected 10, the size of dimension 0}}
  %0 = aten.relu(%x) : tensor<10x4xf32> <ep: Ragged(0, [1, 6, 2])>
  return
}
