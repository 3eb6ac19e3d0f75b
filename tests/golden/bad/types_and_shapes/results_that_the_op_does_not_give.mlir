// RUN: spmd-opt %s --verify-spmd --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xi64> {
  // expected-error@+1 {{result 0 has the element type i64; expected f32}}
  %0 = aten.relu(%x) : tensor<8x8xi64> <>
  return %0 : tensor<8x8xi64>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{result 0 has the element type f32; expected i1}}
  %0 = aten.gt.Scalar(%x) {other = 0} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{result 0 has the element type f32; expected i64}}
  %0 = aten.argmax(%x) {dim = 0} : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{result 0 has the element type f32; expected f64}}
  %0 = aten._to_copy(%x) {dtype = f64} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  // expected-error@+1 {{result 0 has 1 dimensions for `*`; expected 2}}
  %0 = aten.relu(%x) : tensor<8xf32> <>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{the result has shape [8, 8]; expected [64], as the arguments specify}}
  %0 = aten.view(%x) {size = [64]} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{the result has shape [8, 8]; expected [8, 4], as the arguments specify}}
  %0 = aten.full() {fill_value = 1.0, size = [8, 4]} : tensor<8x8xf32> <>
  return %0 : tensor<8x8xf32>
}
