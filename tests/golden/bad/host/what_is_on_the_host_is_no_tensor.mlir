// RUN: spmd-opt %s --split-input-file --verify-diagnostics

// No op computes on the host.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload %x : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  // expected-error@+1 {{operand 0 is !spmd.host<tensor<16x8xf32>>; expected a tensor; bring it back: `spmd.reload`}}
  %1 = aten.relu(%0) : tensor<16x8xf32> <dp: S(0)>
  return
}

// -----

// None sends from there.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload %x : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  // expected-error@+1 {{operand 0 is !spmd.host<tensor<16x8xf32>>; expected a tensor; bring it back: `spmd.reload`}}
  %1 = spmd.all_gather %0 on [dp] dim 0 : tensor<16x8xf32> <>
  return
}

// -----

// What comes back was offloaded.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{copies tensor<16x8xf32>; expected the result of `spmd.offload`}}
  %0 = spmd.reload %x : tensor<16x8xf32> <dp: S(0)>
  return
}

// -----

// What is on the host goes there no second time.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload %x : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  // expected-error@+1 {{copies !spmd.host<tensor<16x8xf32>>; expected a tensor on the accelerator}}
  %1 = spmd.offload %0 : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  return
}

// -----

// A copy on its way is not there yet.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload_start %x : !spmd.pending<!spmd.host<tensor<16x8xf32>>> <dp: S(0)>
  %1 = spmd.wait %0 : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  // expected-error@+1 {{copies !spmd.pending<!spmd.host<tensor<16x8xf32>>>; expected the result of `spmd.offload`}}
  %2 = spmd.reload %0 : tensor<16x8xf32> <dp: S(0)>
  return
}

// -----

// A copy that nobody waits for.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{has 0 `spmd.wait` ops; expected exactly one: add the wait, or remove the others}}
  %0 = spmd.offload_start %x : !spmd.pending<!spmd.host<tensor<16x8xf32>>> <dp: S(0)>
  return
}

// -----

// A wait brings nothing back.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload_start %x : !spmd.pending<!spmd.host<tensor<16x8xf32>>> <dp: S(0)>
  // expected-error@+1 {{has an operand !spmd.pending<!spmd.host<tensor<16x8xf32>>> and a result tensor<16x8xf32>; expected one type, apart from `!spmd.pending`}}
  %1 = spmd.wait %0 : tensor<16x8xf32> <dp: S(0)>
  return
}

// -----

// A copy changes no type.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{returns tensor<16x8xf32>; expected !spmd.host<tensor<16x8xf32>>}}
  %0 = spmd.offload %x : tensor<16x8xf32> <dp: S(0)>
  return
}

// -----

// It changes no sharding.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{the operand is <dp: S(0)> and its copy is <dp: S(1)>; expected one sharding: give the copy that of the operand}}
  %0 = spmd.offload %x : !spmd.host<tensor<16x8xf32>> <dp: S(1)>
  return
}

// -----

// What is there needs no wait.
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.offload %x : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  // expected-error@+1 {{operand %0 is !spmd.host<tensor<16x8xf32>>, which is not pending; expected the result of a `*_start` op, such as `spmd.all_gather_start`}}
  %1 = spmd.wait %0 : !spmd.host<tensor<16x8xf32>> <dp: S(0)>
  return
}

// -----

// Nothing on the host enters or leaves a function.
spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{argument 0 is !spmd.host<tensor<16x8xf32>>; expected a tensor: reload it in the function that offloads it}}
func.func @f(%x: !spmd.host<tensor<16x8xf32>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  return
}
