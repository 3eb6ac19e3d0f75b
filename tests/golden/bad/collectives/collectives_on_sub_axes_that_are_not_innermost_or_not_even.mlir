// RUN: spmd-opt %s --verify-diagnostics --split-input-file

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  // expected-error@+1 {{all_gather on [tp(1)2] requires the innermost axes of dimension 0 in nesting order, found [tp(1)2, tp(2)2]}}
  %0 = spmd.all_gather %x on [tp(1)2] dim 0 : tensor<8x8xf32> <tp(2)2: S(0)>
  return
}

// -----

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  // expected-error@+1 {{all_gather splits <tp: S(0)>, whose shards of [6, 8] are uneven; expected even shards: move whole axes instead of sub-axes}}
  %0 = spmd.all_gather %x on [tp(2)2] dim 0 : tensor<6x8xf32> <tp(1)2: S(0)>
  return
}

// -----

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>}) {
  // expected-error@+1 {{slice splits <tp: S(0)>, whose shards of [6, 8] are uneven; expected even shards: move whole axes instead of sub-axes}}
  %0 = spmd.slice %x on [tp(2)2] dim 0 : tensor<6x8xf32> <tp: S(0)>
  return
}

// -----

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: P(sum)>}) {
  // expected-error@+1 {{all_reduce requires 'tp(2)2' to be partial; found R in <tp(1)2: P(sum)>: reshard the axis first, or use another collective}}
  %0 = spmd.all_reduce %x on [tp] op sum : tensor<8x8xf32> <>
  return
}

// -----

spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  // expected-error@+1 {{broadcast requires 'tp(2)2' to be replicated; found S(0) in <tp(1)2: S(0), tp(2)2: S(0)>: reshard the axis first, or use another collective}}
  %0 = spmd.broadcast %x on [tp(2)2] : tensor<8x8xf32> <tp: S(0)>
  return
}
