// RUN: spmd report %s --view timeline
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %y: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<1024x1024xf32>, tensor<4096x1024xf32>) attributes {spmd.stage = "local"} {
  %g = spmd.all_gather %x on [tp] dim 1 : tensor<1024x1024xf32> <>
  %e = aten.exp(%y) : tensor<4096x1024xf32> <>
  return %g, %e : tensor<1024x1024xf32>, tensor<4096x1024xf32>
}

// | start us  end us  stream   op             live
// |      0.0     2.6  compute  %g all_gather  26.21 MB
// |      2.6    30.0  tp       %g all_gather
// |      2.6    30.0  compute  waits for %g   26.21 MB
// |     30.0    42.0  compute  %e aten.exp    38.8 MB
