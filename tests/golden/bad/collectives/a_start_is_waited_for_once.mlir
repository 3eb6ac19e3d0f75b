// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// What is there needs no wait.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x8xf32> <>
  // expected-error@+1 {{operand %0 is tensor<16x8xf32>, which is not pending; expected the result of a `*_start` op, such as `spmd.all_gather_start`}}
  %1 = spmd.wait %0 : tensor<16x8xf32> <>
  return
}

// -----

// What is pending is no tensor yet.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <>
  %1 = spmd.wait %0 : tensor<16x8xf32> <>
  // expected-error@+1 {{operand 0 is !spmd.pending<tensor<16x8xf32>>; expected a tensor; wait for it: `spmd.wait`}}
  %2 = aten.relu(%0) : tensor<16x8xf32> <>
  return
}

// -----

// A collective that nobody waits for.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has 0 `spmd.wait` ops; expected exactly one: add the wait, or remove the others}}
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <>
  return
}

// -----

// Two waits for one.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has 2 `spmd.wait` ops; expected exactly one: add the wait, or remove the others}}
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <>
  %1 = spmd.wait %0 : tensor<16x8xf32> <>
  %2 = spmd.wait %0 : tensor<16x8xf32> <>
  return
}

// -----

// A start says that its result is pending.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has the result type tensor<16x8xf32>; expected !spmd.pending<tensor<16x8xf32>>}}
  %0 = spmd.all_gather_start %x on [dp] dim 0 : tensor<16x8xf32> <>
  return
}

// -----

// A collective that is done at once gives a tensor.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has the result type !spmd.pending<tensor<16x8xf32>>; expected tensor<16x8xf32>}}
  %0 = spmd.all_gather %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <>
  return
}

// -----

// A wait gives a tensor.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <>
  // expected-error@+1 {{has the result type !spmd.pending<tensor<16x8xf32>>; expected the type of the operand without `!spmd.pending`}}
  %1 = spmd.wait %0 : !spmd.pending<tensor<16x8xf32>> <>
  return
}

// -----

// Nothing pending enters or leaves a function.
spmd.mesh @mesh <dp = 2, tp = 4>

// expected-error@+1 {{argument 0 is !spmd.pending<tensor<16x8xf32>>; expected a tensor: wait for it in the function that starts it}}
func.func @f(%x: !spmd.pending<tensor<16x8xf32>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  return
}

// -----

// An op that does nothing but locally has no start.
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{unknown op 'spmd.slice_start'; expected an op of a dialect, of torch or of a plug-in loaded with --load-plugin; did you mean 'spmd.slice'?}}
  %0 = spmd.slice_start %x on [dp] dim 0 : !spmd.pending<tensor<16x8xf32>> <dp: S(0)>
  return
}
