// RUN: not spmd-opt %s --split-async
// Only the program of one rank has all collectives in the text, those of local forms included.
spmd.mesh @mesh <dp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x4xf32> {
  %0 = spmd.all_gather %x on [dp] dim 0 : tensor<8x4xf32> <>
  return %0 : tensor<8x4xf32>
}

// ! %s:5:1: error: the program has global types, but split-async requires local types; expected a program after localize: run split-async after localize
