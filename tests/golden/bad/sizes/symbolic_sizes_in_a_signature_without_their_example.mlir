// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

// expected-error@+1 {{tensor<[s0]x4xf32> is the type of a result of an op; in a signature expected tensor<8x4xf32, #spmd.dims<s0, 4>>, whose shape is the example of its sizes}}
func.func @f(%x: tensor<[s0]x4xf32>) {
  return
}
