// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{S(5) on axis 'dp' shards dimension 5 of a tensor of rank 2}}
  %0 = aten.relu(%x) : tensor<8x8xf32> <> needs (<dp: S(5)>)
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{<dp: ?> leaves axis 'dp' open; expected open axes only on arguments and constraints: write a placement in place of `?`, or use a spmd.constraint}}
  %0 = aten.relu(%x) : tensor<8x8xf32> <> needs (<dp: ?>)
  return %x : tensor<8x8xf32>
}
