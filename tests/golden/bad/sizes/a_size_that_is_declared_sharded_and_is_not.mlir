// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2>

spmd.sizes {s0 = 8 in 2..64}

func.func @f(%x: tensor<8x4xf32, #spmd.dims<s0, 4>> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1)>}) -> tensor<8x4xf32, #spmd.dims<s0, 4>> {
  // expected-error@+1 {{has the result type !spmd.size<s0, dp>; expected the axes that shard what it measures: none}}
  %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
  %0 = aten.expand(%x) {size = [%n, 4]} : tensor<[s0]x4xf32>
  return %0 : tensor<8x4xf32, #spmd.dims<s0, 4>>
}
