// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <tp = 2>

// expected-error@+1 {{result 0 is declared `spmd.like` 'y'; expected the name of an argument with the same shape}}
func.func @f(%x: tensor<8x8xf32>) -> (tensor<8x8xf32> {spmd.like = "y"}) {
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

// expected-error@+1 {{result 0 is declared `spmd.like` 'y'; expected the name of an argument with the same shape}}
func.func @f(%x: tensor<8x8xf32>, %y: tensor<8xf32>) -> (tensor<8x8xf32> {spmd.like = "y"}) {
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

// expected-error@+1 {{result 0 is declared `spmd.like` 'x' but has a different spmd.sharding; expected one sharding: give both the same sharding, or omit both}}
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8x8xf32> {spmd.like = "x"}) {
  return %x : tensor<8x8xf32>
}
