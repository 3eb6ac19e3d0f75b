// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.cos(%x) : tensor<64x32xf32>
  %1 = mylib.mystery(%0) : tensor<64x32xf32>
  %2 = aten.cos(%1) : tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<64x32xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.cos(%x) : tensor<64x32xf32> <dp: S(0)>
// |   %_0.reshard = spmd.reshard %0 : tensor<64x32xf32> <>
// |   %1 = mylib.mystery(%_0.reshard) : tensor<64x32xf32> <>
// |   %_1.reshard = spmd.reshard %1 : tensor<64x32xf32> <dp: S(0)>
// |   %2 = aten.cos(%_1.reshard) : tensor<64x32xf32> <dp: S(0)>
// |   return %2 : tensor<64x32xf32>
// | }
// ! %s:6:3: warning: 'mylib.mystery' has no rule, so it runs replicated; give it a rule with --load-plugin
