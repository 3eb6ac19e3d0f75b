// RUN: spmd report %s --view schedule,timeline
spmd.mesh @mesh <dp = 4>

func.func @f(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>},
             %y: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: P(sum)>}) -> (tensor<1024x1024xf32>, tensor<512x512xf32>) attributes {spmd.stage = "local"} {
  %h, %i = spmd.all_reduce_start %x, %y on [dp] op sum stream gradients : !spmd.pending<tensor<1024x1024xf32>> <>, !spmd.pending<tensor<512x512xf32>> <>
  %e = aten.neg(%x) : tensor<1024x1024xf32> <dp: P(sum)>
  %g, %f = spmd.wait %h, %i : tensor<1024x1024xf32> <>, tensor<512x512xf32> <>
  return %g, %f : tensor<1024x1024xf32>, tensor<512x512xf32>
}

// | step of a rank 0.05428 ms: compute 0.009634 ms, exposed communication 0.04464 ms of 0.04914 ms
// | collective  axes  count      sent       ms  exposed  hidden by
// | all_reduce  dp        1  7.864 MB  0.04914  0.04464  aten.neg 0.004504
// | bucket  collective  axes  tensors      sent
// | %h      all_reduce  dp          2  7.864 MB
// | peak of live memory 19.92 MB, at %e
// | largest
// |   %h   5.243 MB  communication buffers
// |   %h   5.243 MB  activations
// |   x    4.194 MB  inputs
// |   %e   4.194 MB  activations
// |   y    1.049 MB  inputs
// |
// | start us  end us  stream     op                   live
// |      0.0     5.1  compute    %h all_reduce_start  15.73 MB
// |      5.1     9.6  compute    %e aten.neg          19.92 MB
// |      5.1    54.3  gradients  %h all_reduce_start
// |      9.6    54.3  compute    waits for %h         15.73 MB
