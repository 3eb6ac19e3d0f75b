// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <tp = 6>

// expected-error@+1 {{axis 'tp' of 6 ranks is split after 2 and after 3, of which neither divides the other; split it in ways that go together}}
func.func @f(%x: tensor<12xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) -> (tensor<12xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)3: S(0)>}) {
  return %x : tensor<12xf32>
}
