// RUN: not spmd-opt %s --localize --fit-memory="budget=1kB offload=false"
spmd.mesh @mesh <dp = 2>

// %mask waits while %wide needs room, and can only be held where nothing is copied to the host: other numbers would be drawn the second time.
func.func @step(%x: tensor<4x32xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x32xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %mask = aten.bernoulli.p(%x) {p = 0.5} : tensor<4x32xf32> <>
  %y = aten.mul.Tensor(%x, %mask) : tensor<4x32xf32> <>
  %wide = aten.cat([%y, %y]) {dim = 1} : tensor<4x64xf32> <>
  %part = aten.slice.Tensor(%wide) {dim = 1, end = 32, start = 0, step = 1} : tensor<4x32xf32> <>
  %dx = aten.mul.Tensor(%part, %mask) : tensor<4x32xf32> <>
  return %dx : tensor<4x32xf32>
}

// ! %s:5:1: error: a rank needs at least 2.56 kB of memory, at %wide, even with recomputation; the largest buffers are %wide 1.024 kB, x 512 B, %mask 512 B, %y 512 B; expected at most 1 kB, the option `budget` of fit-memory or the memory limit of propagate: use more ranks, shard the inputs of the program, or raise the limit to budget=2560
