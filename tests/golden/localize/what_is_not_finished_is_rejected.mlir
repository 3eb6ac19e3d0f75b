// RUN: spmd-opt %s --localize --verify-diagnostics --split-input-file
spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4xf32> {
  // expected-error@+1 {{localize found 'spmd.reshard'; expected collectives instead of reshards: run lower-reshard first}}
  %0 = spmd.reshard %x : tensor<4xf32> <>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4xf32> {
  // expected-error@+1 {{localize found 'aten.relu' with `needs`, whose operands have other shardings than it requires; expected reshards of these operands: run insert-reshard first}}
  %0 = aten.relu(%x) : tensor<4xf32> <> needs (<>)
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4xf32> {
  // expected-error@+1 {{'aten.relu' has a value without a sharding; expected a sharding for each value: run propagate first}}
  %0 = aten.relu(%x) : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4xf32> {
  // expected-error@+1 {{is not a strategy of this op}}
  %0 = aten.relu(%x) : tensor<4xf32> <>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<2xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2xf32> {
  // expected-error@+1 {{a constant has the sharding <tp: S(0)>; expected <>, since each rank has the whole constant: reshard its result instead}}
  %0 = spmd.constant value "000080bf00000040" : tensor<2xf32> <tp: S(0)>
  return %0 : tensor<2xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @main(%x: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<2x4xf32> {
  // expected-error@+1 {{'aten._softmax' reduces inside a sharded dimension; expected ops that reduce shards: run expand first}}
  %0 = aten._softmax(%x) {dim = 1, half_to_float = false} : tensor<2x4xf32> <tp: S(1)>
  return %0 : tensor<2x4xf32>
}
