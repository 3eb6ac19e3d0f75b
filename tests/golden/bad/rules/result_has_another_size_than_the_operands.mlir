// RUN: spmd-opt %s --propagate --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<16x5xf32> {
  // expected-error@+1 {{aten.mm: result 0 has n = 5; expected 4, because all dimensions n have one size}}
  %0 = aten.mm(%x, %w) : tensor<16x5xf32>
  return %0 : tensor<16x5xf32>
}
