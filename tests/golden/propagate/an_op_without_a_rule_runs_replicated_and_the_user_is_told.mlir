// RUN: --propagate --insert-reshard
spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.cos(%x) : tensor<64x32xf32>
  %1 = mylib.mystery(%0) : tensor<64x32xf32>
  %2 = aten.cos(%1) : tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
// |   %0 = aten.cos(%x) : tensor<64x32xf32> <dp: S(0)>
// |   %1 = spmd.reshard %0 : tensor<64x32xf32> <>
// |   %2 = mylib.mystery(%1) : tensor<64x32xf32> <>
// |   %3 = spmd.reshard %2 : tensor<64x32xf32> <dp: S(0)>
// |   %4 = aten.cos(%3) : tensor<64x32xf32> <dp: S(0)>
// |   return %4 : tensor<64x32xf32>
// | }
// ! <stdin>:6:3: warning: 'mylib.mystery' has no rule, so it runs replicated; give it one with --load-plugin
