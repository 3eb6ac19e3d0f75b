// RUN: spmd-opt %s --verify-spmd --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{argument 'dim' selects a dimension twice: [0, -2]}}
  %0 = aten.sum.dim_IntList(%x) {dim = [0, -2]} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'dim1' selects dimension 2 of a tensor of rank 2}}
  %0 = aten.transpose.int(%x) {dim0 = 0, dim1 = 2} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{argument 'dims' selects a dimension twice: [0, 0]}}
  %0 = aten.permute(%x) {dims = [0, 0]} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x16xf32> {
  // expected-error@+1 {{the shape [8, 8] cannot be expanded to [8, 16]}}
  %0 = aten.expand(%x) {size = [8, 16]} : tensor<8x16xf32> <>
  return %0 : tensor<8x16xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{invalid shape [-1, -1]; expected non-negative sizes, and at most one -1}}
  %0 = aten.view(%x) {size = [-1, -1]} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xi64> {
  // expected-error@+1 {{there is no range from 0 to 8 in steps of 0}}
  %0 = aten.arange.start_step() {start = 0, end = 8, step = 0} : tensor<8xi64> <>
  return %0 : tensor<8xi64>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{'abc' in equation 'abc,bc->ac' has 3 letters for a tensor of rank 2}}
  %0 = aten.einsum([%x, %x]) {equation = "abc,bc->ac"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{equation 'ab,bc->ac' has 2 terms for 1 tensors}}
  %0 = aten.einsum([%x]) {equation = "ab,bc->ac"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{unsupported equation 'ab,bc->az'; expected the form ab,bc->ac}}
  %0 = aten.einsum([%x, %x]) {equation = "ab,bc->az"} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{operand 'tensors' of aten.cat is an empty list; expected one or more tensors: pass them}}
  %0 = aten.cat([]) {dim = 0} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f() -> tensor<8xf32> {
  // expected-error@+1 {{there is no range from 0 to inf in steps of 1}}
  %0 = aten.arange() {end = inf} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}
