// RUN: spmd-opt %s --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{the local type is tensor<4x8xf32>; expected tensor<?x8xf32>, the type of the shards of tensor<7x8xf32> <tp: S(0)>}}
  %0 = my.op(%x) : tensor<4x8xf32> <tp: S(0)> of [7, 8]
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{the local type is tensor<?x8xf32>; expected tensor<4x8xf32>, the type of the shards of tensor<8x8xf32> <tp: S(0)>}}
  %0 = my.op(%x) : tensor<?x8xf32> <tp: S(0)> of [8, 8]
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the global shape [7]; expected 2 sizes, as in `of [7, 8]`}}
  %0 = my.op(%x) : tensor<?x8xf32> <tp: S(0)> of [7]
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{tensor<?x8xf32> has a size that differs between ranks; expected its global shape}}
  %0 = my.op(%x) : tensor<?x8xf32> <tp: S(0)>
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{tensor<?x8xf32> has a global shape but no sharding; expected both: write the sharding before `of`, as in `<dp: S(0)> of [7, 4]`}}
  %0 = my.op(%x) : tensor<?x8xf32> of [7, 8]
  return %x : tensor<8x8xf32>
}

// -----

func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has a sharding, but the module declares no mesh; expected one: add `spmd.mesh @mesh <dp = 2>` with the axes}}
  %0 = my.op(%x) : tensor<?x8xf32> <tp: S(0)> of [7, 8]
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8x8xf32> attributes {spmd.stage = "local"} {
  // expected-error@+1 {{axis 'zz' is not in mesh @mesh <dp = 2, tp = 2>}}
  %0 = my.op(%x) {a = offset(4, zz)} : tensor<8x8xf32>
  return %x : tensor<8x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{argument 0 is tensor<?x8xf32>, whose size differs between ranks; expected spmd.sharding and spmd.of}}
func.func @f(%x: tensor<?x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<?x8xf32> {
  return %x : tensor<?x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

// expected-error@+1 {{argument 0: the local type is tensor<5x8xf32>; expected tensor<?x8xf32>, the type of the shards of tensor<9x8xf32> <tp: S(0)>}}
func.func @f(%x: tensor<5x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.of = #spmd.shapes<{of = [[9, 8]]}>}) -> tensor<5x8xf32> {
  return %x : tensor<5x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error@+1 {{size(8, dp) depends on the rank, but the function has global tensors; expected it only after localize: write a number that is equal on all ranks}}
  %0 = aten.triu(%x) {diagonal = size(8, dp)} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
