// RUN: spmd-opt %s --verify-spmd --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dim' is "a"; expected an integer or a list of integers}}
  %0 = aten.sum.dim_IntList(%x) {dim = "a"} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dim' is [0.0]; expected an integer}}
  %0 = aten.sum.dim_IntList(%x) {dim = [0.0]} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dim' is [true]; expected an integer}}
  %0 = aten.sum.dim_IntList(%x) {dim = [true]} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<1x8xf32> {
  // expected-error@+1 {{argument 'keepdim' is 3; expected true or false}}
  %0 = aten.sum.dim_IntList(%x) {dim = [0], keepdim = 3} : tensor<1x8xf32> <>
  return %0 : tensor<1x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dtype' is 3; expected an element type}}
  %0 = aten.sum.dim_IntList(%x) {dim = [0], dtype = 3} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'alpha' is "a"; expected a number}}
  %0 = aten.add.Tensor(%x, %x) {alpha = "a"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'other' is "a"; expected a number}}
  %0 = aten.add.Tensor(%x) {other = "a"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'dims' is "01"; expected an integer or a list}}
  %0 = aten.permute(%x) {dims = "01"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'approximate' is 3; expected a string}}
  %0 = aten.gelu(%x) {approximate = 3} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'size' is missing; expected integers}}
  %0 = aten.view(%x) : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'equation' is 3; expected a string}}
  %0 = aten.einsum([%x, %x]) {equation = 3} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}
