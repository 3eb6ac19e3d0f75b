// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <tp = 6>

// expected-error@+1 {{sub-axes split axis 'tp' of 6 ranks into 2 and into 3 blocks, but 2 does not divide 3; expected block counts that divide each other: use sub-axes of one factorisation of the axis}}
func.func @f(%x: tensor<12xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) -> (tensor<12xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)3: S(0)>}) {
  return %x : tensor<12xf32>
}
