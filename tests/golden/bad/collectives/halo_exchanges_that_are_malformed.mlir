// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<8x4xf32>) -> tensor<10x4xf32> {
  // expected-error@+1 {{only a function after localize has such ops}}
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
  // expected-error@+1 {{gives [5, 4] of f32; expected [6, 4] of f32}}
  %0 = spmd.halo %x on [tp] dim 0 before 1 after 1 : tensor<5x4xf32>
  return %0 : tensor<5x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{expected `after` with a number from 0 on, found None}}
  %0 = spmd.halo_reduce %x on [tp] dim 0 before 2 : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<6x4xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{is filled with 'ones'; expected zero or lowest}}
  %0 = spmd.halo %x on [tp] dim 0 before 1 after 1 fill ones : tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
