// RUN: spmd-opt %s --split-input-file --fuse-collectives="only=gather-of-slice"
spmd.mesh @mesh <dp = 2, tp = 4>

// What was sliced and put together again was there all the time.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
  %s = spmd.slice %x on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
  %y = spmd.all_gather %s on [tp] dim 0 : tensor<16x8xf32> <>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<16x8xf32> {
// |   return %x : tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Outer axes stay sliced, or stay to be gathered.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %s = spmd.slice %x on [dp, tp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  %y = spmd.all_gather %s on [tp] dim 0 : tensor<16x8xf32> <dp: S(0)>
  %u = spmd.slice %z on [tp] dim 1 : tensor<16x8xf32> <dp: S(1), tp: S(1)>
  %v = spmd.all_gather %u on [dp, tp] dim 1 : tensor<16x8xf32> <>
  return %y, %v : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |                 %z: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %y = spmd.slice %x on [dp] dim 0 : tensor<16x8xf32> <dp: S(0)>
// |   %v = spmd.all_gather %z on [dp] dim 1 : tensor<16x8xf32> <>
// |   return %y, %v : tensor<16x8xf32>, tensor<16x8xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// Not where other axes are gathered than were sliced.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  %s = spmd.slice %x on [dp] dim 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
  %y = spmd.all_gather %s on [tp] dim 0 : tensor<16x8xf32> <dp: S(1)>
  return %y : tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
// |   %s = spmd.slice %x on [dp] dim 1 : tensor<16x8xf32> <tp: S(0), dp: S(1)>
// |   %y = spmd.all_gather %s on [tp] dim 0 : tensor<16x8xf32> <dp: S(1)>
// |   return %y : tensor<16x8xf32>
// | }
