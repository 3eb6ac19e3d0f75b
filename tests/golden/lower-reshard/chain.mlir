// RUN: spmd-opt %s --lower-reshard
spmd.mesh @mesh <dp = 2, tp = 4>

// A reshard to the sharding a value has vanishes; one of a resharded value starts from the value itself.
func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
  %same = spmd.reshard %x : tensor<16x8xf32> <tp: S(0)>
  %there = spmd.reshard %same : tensor<16x8xf32> <tp: S(1)>
  %wanted = spmd.constraint %there : tensor<16x8xf32> <dp: S(0), tp: S(1)>
  %back = spmd.reshard %wanted : tensor<16x8xf32> <tp: S(0)>
  return %wanted, %back : tensor<16x8xf32>, tensor<16x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @main(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
// |   %there = spmd.all_to_all %x on [tp] from 0 to 1 : tensor<16x8xf32> <tp: S(1)>
// |   %wanted = spmd.slice %there on [dp] dim 0 : tensor<16x8xf32> <dp: S(0), tp: S(1)>
// |   return %wanted, %x : tensor<16x8xf32>, tensor<16x8xf32>
// | }
