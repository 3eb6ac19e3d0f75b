// RUN: spmd-opt %s --verify-spmd --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<16x4xf32> {
  // expected-error@+1 {{(R, S(1)) -> (P(sum)) is not a strategy of this op}}
  %0 = aten.mm(%x, %w) : tensor<16x4xf32> <dp: S(0), tp: P(sum)>
  // expected-error@+1 {{result 0 is a partial value}}
  return %0 : tensor<16x4xf32>
}
