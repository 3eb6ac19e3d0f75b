// RUN: spmd report %s --view timeline
// Alone each takes 61.2 us, of which 15.9 are latency.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
             %y: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8192x1024xf32>, tensor<8192x1024xf32>) attributes {spmd.stage = "local"} {
  %h = spmd.all_gather_start %x on [dp] dim 0 : !spmd.pending<tensor<8192x1024xf32>> <>
  %i = spmd.all_gather_start %y on [tp] dim 0 : !spmd.pending<tensor<8192x1024xf32>> <>
  %g = spmd.wait %h : tensor<8192x1024xf32> <>
  %e = spmd.wait %i : tensor<8192x1024xf32> <>
  return %g, %e : tensor<8192x1024xf32>, tensor<8192x1024xf32>
}

// | start us  end us  stream   op                   live
// |      0.0   105.0  dp       %h all_gather_start
// |      0.0   105.0  tp       %i all_gather_start
// |      0.0   105.0  compute  waits for %h         100.7 MB
