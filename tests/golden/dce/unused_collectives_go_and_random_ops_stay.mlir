// RUN: spmd-opt %s --dce

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x64xf32> {
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<16x64xf32> <>
  %1 = spmd.constraint %0 : tensor<16x64xf32> <tp: S(0)>
  %2 = aten.scaled_dot_product_attention(%x, %x, %x) : tensor<16x64xf32> <dp: S(0)>
  %3 = aten.scaled_dot_product_attention(%x, %x, %x) {dropout_p = 0.1} : tensor<16x64xf32> <dp: S(0)>
  %4 = mylib.noise(%x) : tensor<16x64xf32> <>
  return %x : tensor<16x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<16x64xf32> {
// |   %3 = aten.scaled_dot_product_attention(%x, %x, %x) {dropout_p = 0.1} : tensor<16x64xf32> <dp: S(0)>
// |   %4 = mylib.noise(%x) : tensor<16x64xf32> <>
// |   return %x : tensor<16x64xf32>
// | }
