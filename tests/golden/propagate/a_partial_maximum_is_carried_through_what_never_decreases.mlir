// RUN: spmd-opt %s --propagate="topology=flat" --insert-reshard
spmd.mesh @mesh <tp = 4>

// relu never decreases, and the negation makes a minimum of the maximum; one number is reduced instead of 4096. Through
// the cosine no extremum is carried.
func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<f32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.amax(%x) {dim = [1]} : tensor<4096xf32>
  %1 = aten.relu(%0) : tensor<4096xf32>
  %2 = aten.neg(%1) : tensor<4096xf32>
  %3 = aten.amin(%2) {dim = [0]} : tensor<f32>
  %4 = aten.amin(%x) {dim = [1]} : tensor<4096xf32>
  %5 = aten.cos(%4) : tensor<4096xf32>
  return %3, %5 : tensor<f32>, tensor<4096xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<f32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<4096xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "resharded", spmd.decided_by = "propagate{topology=flat}"} {
// |   %0 = aten.amax(%x) {dim = [1]} : tensor<4096xf32> <tp: P(max)>
// |   %1 = aten.relu(%0) : tensor<4096xf32> <tp: P(max)>
// |   %2 = aten.neg(%1) : tensor<4096xf32> <tp: P(min)>
// |   %3 = aten.amin(%2) {dim = [0]} : tensor<f32> <tp: P(min)>
// |   %4 = aten.amin(%x) {dim = [1]} : tensor<4096xf32> <tp: P(min)>
// |   %_4.reshard = spmd.reshard %4 : tensor<4096xf32> <>
// |   %5 = aten.cos(%_4.reshard) : tensor<4096xf32> <>
// |   %_3.reshard = spmd.reshard %3 : tensor<f32> <>
// |   return %_3.reshard, %5 : tensor<f32>, tensor<4096xf32>
// | }
