// RUN: spmd-opt %s

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>}) -> tensor<8x8xf32> {
  %0 = spmd.constraint %x : tensor<8x8xf32> <tp: ?>
  return %0 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>}) -> tensor<8x8xf32> {
// |   %0 = spmd.constraint %x : tensor<8x8xf32> <tp: ?>
// |   return %0 : tensor<8x8xf32>
// | }
