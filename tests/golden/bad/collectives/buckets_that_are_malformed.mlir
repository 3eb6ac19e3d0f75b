// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <dp = 2, tp = 4>

// A message has one element type.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{a bucket has members of element types f32, f64; expected one element type: use one bucket for each element type}}
  %0, %1 = spmd.all_gather %x, %y on [dp] dim 0 : tensor<8xf32> <>, tensor<8xf64> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has dim [0, 0, 0] for 2 tensors; expected one number, or one for each tensor}}
  %0, %1 = spmd.all_gather %x, %y on [dp] dim [0, 0, 0] : tensor<8xf32> <>, tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Each member makes a legal step of its own.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  // expected-error@+1 {{'spmd.all_gather': all_gather on [dp] requires the innermost axes of dimension 0 in nesting order, found [tp] in <tp: S(0)>; expected these axes last: move the inner axes first}}
  %0, %1 = spmd.all_gather %x, %y on [dp] dim 0 : tensor<8xf32> <>, tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has 2 operands and 1 results; expected equal numbers}}
  %0 = spmd.all_gather %x, %y on [dp] dim 0 : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{has 2 operands and 2 results; expected one of each}}
  %0, %1 = spmd.slice %x, %y on [dp] dim 0 : tensor<8xf32> <dp: S(0)>, tensor<8xf32> <dp: S(0)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A message is on one group, which of an exchange its shardings say.
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  // expected-error@+1 {{a bucket has members on [dp] and [tp]; expected one group: use one bucket for each group}}
  %0, %1 = spmd.exchange %x, %y : tensor<8x8xf32> <dp: S(1)>, tensor<8x8xf32> <tp: S(1)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Who waits for a bucket waits for all of it.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has 2 `spmd.wait` ops; expected exactly one: add the wait, or remove the others}}
  %0, %1 = spmd.all_gather_start %x, %y on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>, !spmd.pending<tensor<8xf32>> <>
  %2 = spmd.wait %0 : tensor<8xf32> <>
  %3 = spmd.wait %1 : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0, %1 = spmd.all_gather_start %x, %y on [dp] dim 0 : !spmd.pending<tensor<8xf32>> <>, !spmd.pending<tensor<8xf32>> <>
  // expected-error@+1 {{has operands other than the results of one `*_start` op; expected all results of one `*_start` op, in order}}
  %2, %3 = spmd.wait %1, %0 : tensor<8xf32> <>, tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has stream 3; expected a name, as in `stream prefetch`, on an op that starts a collective}}
  %0 = spmd.all_gather_start %x on [dp] dim 0 stream 3 : !spmd.pending<tensor<8xf32>> <>
  %1 = spmd.wait %0 : tensor<8xf32> <>
  return
}
