// RUN: spmd-opt %s --split-input-file --verify-diagnostics --propagate
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<6x7xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(1, 1)>}) -> tensor<6x7xf32> {
  // expected-error@+1 {{'aten.sort': no strategy of its rule gives <tp: Cyclic(1, 1)> on axis 'tp'; no Cyclic(d1, 1): the rule does not allow sharding it (order.rules:35:76); expected placements that a strategy gives: give the sharding to a spmd.constraint on its result instead}}
  %0, %1 = aten.sort(%x) {dim = 1, descending = false} : tensor<6x7xf32> <tp: Cyclic(1, 1)>, tensor<6x7xi64>
  return %0 : tensor<6x7xf32>
}
// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<1x2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}) -> tensor<1x2x4xf32> {
  // expected-error@+1 {{'aten.avg_pool1d': no strategy of its rule gives <tp: Cyclic(2, 1)> on axis 'tp'; no Cyclic(x, 1): windows slide along it, and halos require shards of one range; expected placements that a strategy gives: give the sharding to a spmd.constraint on its result instead}}
  %0 = aten.avg_pool1d(%x) {kernel_size = [2]} : tensor<1x2x4xf32> <tp: Cyclic(2, 1)>
  return %0 : tensor<1x2x4xf32>
}
// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<10xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 4)>}) -> tensor<3xf32> {
  // expected-error@+1 {{'aten.chunk': no strategy of its rule gives <tp: S(0)> on axis 'tp'; no (Strided(dim, chunks)) -> (S(dim)…): its `when` does not hold (strided.rules:2:92); no S(~dim): the rule does not allow sharding it (view.rules:59:1); expected placements that a strategy gives: give the sharding to a spmd.constraint on its result instead}}
  %a, %b, %c, %d = aten.chunk(%x) {chunks = 4} : tensor<3xf32> <tp: S(0)>, tensor<3xf32>, tensor<3xf32>, tensor<1xf32>
  return %a : tensor<3xf32>
}
