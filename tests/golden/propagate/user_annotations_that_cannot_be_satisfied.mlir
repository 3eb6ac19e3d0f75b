// RUN: spmd-opt %s --split-input-file --verify-diagnostics --propagate
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<64x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<64x4096xf32> {
  // expected-error@+1 {{'aten.flip': no strategy of its rule gives <tp: S(1)> on axis 'tp'; no S(d1): the rule does not allow sharding it (view.rules:64:72); expected placements that a strategy gives: give the sharding to a spmd.constraint on its result instead}}
  %0 = aten.flip(%x) {dims = [1]} : tensor<64x4096xf32> <tp: S(1)>
  return %0 : tensor<64x4096xf32>
}
// -----
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16xf32> {
  // expected-error@+1 {{found 'spmd.all_gather', which a later pass creates; expected a program before that pass: run propagate first}}
  %0 = spmd.all_gather %x on [tp] dim 0 : tensor<16xf32> <>
  return %0 : tensor<16xf32>
}
// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// A maximum of sums is no sum of maxima.
func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum), tp: S(1)>}) -> tensor<16xf32> {
  // expected-error@+1 {{partial values of different kinds}}
  %0 = aten.amax(%x) {dim = [1]} : tensor<16xf32> <dp: P(sum), tp: P(max)>
  return %0 : tensor<16xf32>
}
