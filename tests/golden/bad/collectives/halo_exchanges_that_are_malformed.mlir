// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<8x4xf32>) -> tensor<10x4xf32> {
  // expected-error@+1 {{exchanges halos of local tensors in a function of global tensors; expected a function after localize: run localize, or remove the op}}
  %0 = spmd.halo %x on [tp] dim 0 before 1 after 1 : tensor<10x4xf32>
  return %0 : tensor<10x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<6x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{axis 'dp' is not in mesh}}
  %0 = spmd.halo %x on [dp] dim 0 before 1 after 1 : tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<5x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has a result of shape [5, 4] and f32; expected [6, 4] and f32}}
  %0 = spmd.halo %x on [tp] dim 0 before 1 after 1 : tensor<5x4xf32>
  return %0 : tensor<5x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{expected `after` with a number of at least 0, found None}}
  %0 = spmd.halo_reduce %x on [tp] dim 0 before 2 : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<6x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the fill 'ones'; expected zero or lowest}}
  %0 = spmd.halo %x on [tp] dim 0 before 1 after 1 fill ones : tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
