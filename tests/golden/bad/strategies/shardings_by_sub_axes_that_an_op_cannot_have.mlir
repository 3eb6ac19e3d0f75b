// RUN: spmd-opt %s --verify-spmd --verify-diagnostics --split-input-file

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(2)2: S(0), tp(1)2: S(0)>}) {
  // expected-error@+1 {{of a dimension with the factors (r0 r1) are not in the order of the factors; expected the axes of the major factors first: reorder the axes}}
  %0 = aten.view(%x) {size = [2, 4]} : tensor<2x4xf32> <tp(1)2: S(0), tp(2)2: S(1)>
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 8>

func.func @f(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)4: S(0)>}) {
  // expected-error@+1 {{on axis 'tp(2)2' (S(0)) -> (S(1)) is not a strategy of this op}}
  %0 = aten.view(%x) {size = [4, 4]} : tensor<4x4xf32> <tp(1)2: S(0), tp(2)2: S(1)>
  return
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0), dp: S(0), tp(2)2: S(0)>}) {
  // expected-error@+1 {{sub-axes of 'tp' shard factor 'd0' of size 6 into 8 uneven shards; expected even shards: shard it by the whole axis, or by sub-axes that divide its size}}
  %0 = aten.relu(%x) : tensor<6xf32> <tp(1)2: S(0), dp: S(0), tp(2)2: S(0)>
  return
}
