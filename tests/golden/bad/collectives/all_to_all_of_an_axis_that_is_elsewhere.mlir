// RUN: spmd-opt %s --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  // expected-error@+1 {{'spmd.all_to_all': all_to_all on [dp] requires the innermost axes of dimension 1 in nesting order, found [] in <dp: S(0)>; expected these axes last: move the inner axes first}}
  %0 = spmd.all_to_all %x on [dp] from 1 to 0 : tensor<16x8xf32> <dp: S(0)>
  return
}
