// RUN: spmd report %s --view timeline
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %y: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<1024x1024xf32>, tensor<4096x1024xf32>) attributes {spmd.stage = "local"} {
  %h = spmd.all_gather_start %x on [tp] dim 1 : !spmd.pending<tensor<1024x1024xf32>> <>
  %e = aten.exp(%y) : tensor<4096x1024xf32> <>
  %g = spmd.wait %h : tensor<1024x1024xf32> <>
  return %g, %e : tensor<1024x1024xf32>, tensor<4096x1024xf32>
}

// | start us  end us  stream   op                   live
// |      0.0    12.0  compute  %e aten.exp          38.8 MB
// |      0.0    27.3  tp       %h all_gather_start
// |     12.0    27.3  compute  waits for %h         42.99 MB
// |     27.3    30.0  compute  %g wait              42.99 MB
