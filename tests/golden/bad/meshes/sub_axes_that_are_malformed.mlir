// RUN: spmd-opt %s --verify-diagnostics --split-input-file

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'tp(1)3' is not a sub-axis of 'tp', which has 4 ranks; expected tp(outer)size, where size is at least 2 and outer times size divides 4}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)3: S(0)>}) {
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'tp(4)2' is not a sub-axis of 'tp'}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(4)2: S(0)>}) {
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'tp(2)1' is not a sub-axis of 'tp'}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)1: S(0)>}) {
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{axis 'pp(1)2' is not in mesh @mesh <dp = 2, tp = 4>; expected one of dp, tp}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, pp(1)2: S(0)>}) {
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'tp(0)2: S(0)' is not part of a sharding; expected `axis: placement`, as in `dp: S(0)`}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(0)2: S(0)>}) {
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{'tp(1)2' and 'tp' overlap; expected sub-axes without common ranks: use different sub-axes, or only the whole axis}}
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0), tp: S(1)>}) {
  return
}

// -----

spmd.mesh @mesh <tp = 12>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{'tp(1)2' and 'tp(3)2' overlap}}
  %0 = spmd.reshard %x : tensor<16x8xf32> <tp(1)2: S(0), tp(3)2: S(1)>
  return
}

// -----

// expected-error@+1 {{expected an axis: `name = size`}}
spmd.mesh @mesh <tp(1)2 = 2>
