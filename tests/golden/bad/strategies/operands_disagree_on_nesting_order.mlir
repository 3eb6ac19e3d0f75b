// RUN: spmd-opt %s --verify-spmd --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}, %y: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{the axes of factor 'd0' nest as ['dp', 'tp'] in one tensor and as ['tp', 'dp'] in another; expected the same order in both: reorder the axes of one tensor}}
  %0 = aten.add.Tensor(%x, %y) : tensor<16x8xf32> <dp: S(0), tp: S(0)>
  return %0 : tensor<16x8xf32>
}
