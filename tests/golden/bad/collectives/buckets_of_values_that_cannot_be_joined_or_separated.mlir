// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <dp = 2, tp = 4>

// Members pend alike.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{members of a bucket have the partial placements of <dp: P(sum)>, found <>}}
  %0 = spmd.bucket %x, %y : tensor<16xf32> <dp: P(sum)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A sharded member cannot be in a replicated bucket.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) {
  // expected-error@+1 {{'tp' shards a member, <tp: S(0), dp: P(sum)>; expected it to shard the bucket too, found <dp: P(sum)>}}
  %0 = spmd.bucket %x : tensor<8xf32> <dp: P(sum)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Of 8 elements in 4 shards and 6 replicated ones a rank holds 8, so that 4 ranks hold 32.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}, %y: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) {
  // expected-error@+1 {{a bucket of these members has the shape [32], found [14]}}
  %0 = spmd.bucket %x, %y : tensor<14xf32> <tp: S(0), dp: P(sum)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{a bucket of these members has the shape [8], found [2, 4]}}
  %0 = spmd.bucket %x : tensor<2x4xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %y: tensor<8xf64> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{members of a bucket have its element type, found f64; expected f32}}
  %0 = spmd.bucket %x, %y : tensor<16xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: P(sum)>}) {
  // expected-error@+1 {{dimension 0 of a bucket's member is sharded unevenly: 6; expected a multiple of}}
  %0 = spmd.bucket %x : tensor<6xf32> <tp: S(0), dp: P(sum)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// What is scattered cuts through members, so it cannot be taken apart.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) {
  // expected-error@+1 {{is used by 'spmd.reduce_scatter'; a bucket may only be reduced and given to spmd.unbucket}}
  %0 = spmd.bucket %x, %y : tensor<16xf32> <dp: P(sum)>
  %1 = spmd.reduce_scatter %0 on [dp] dim 0 op sum : tensor<16xf32> <dp: S(0)>
  %2, %3 = spmd.unbucket %1 : tensor<8xf32> <dp: S(0)>, tensor<8xf32> <dp: S(0)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A bucket is not a value of the program: one device has no such value.
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> tensor<8xf32> {
  // expected-error@+1 {{is used by 'func.return'; a bucket may only be reduced and given to spmd.unbucket}}
  %0 = spmd.bucket %x : tensor<8xf32> <dp: P(sum)>
  %1 = spmd.all_reduce %0 on [dp] op sum : tensor<8xf32> <>
  return %1 : tensor<8xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{gives 1 values; expected those of a spmd.bucket, one for each}}
  %0 = spmd.unbucket %x : tensor<8xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = spmd.bucket %x, %y : tensor<16xf32> <>
  // expected-error@+1 {{gives 1 values; expected those of a spmd.bucket, one for each}}
  %1 = spmd.unbucket %0 : tensor<16xf32> <>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// As many elements, but not those of the members.
func.func @f(%x: tensor<8x2xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = spmd.bucket %x : tensor<16xf32> <dp: S(0)>
  // expected-error@+1 {{result 0 is [8, 2] <dp: S(1)>, but the bucket joined [8, 2] <dp: S(0)>; only a reduction can be done in between}}
  %1 = spmd.unbucket %0 : tensor<8x2xf32> <dp: S(1)>
  return
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) {
  %0 = spmd.bucket %x : tensor<8xf32> <dp: P(sum)>
  %1 = spmd.all_reduce %0 on [dp] op sum : tensor<8xf32> <>
  // expected-error@+1 {{members of a bucket have the partial placements of <>, found <dp: P(sum)>}}
  %2 = spmd.unbucket %1 : tensor<8xf32> <dp: P(sum)>
  return
}
