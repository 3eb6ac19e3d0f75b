// RUN: spmd-opt %s --propagate="memory=600kB" --verify-diagnostics
spmd.mesh @mesh <dp = 4, tp = 2>

// expected-error@+1 {{expected at most 600 kB}}
func.func @main(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %w1: tensor<512x1024xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
                %w2: tensor<1024x512xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(0)>}) -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<64x1024xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32>
  %2 = aten.mm(%1, %w2) : tensor<64x512xf32>
  %3 = aten.mm(%2, %w1) : tensor<64x1024xf32>
  %4 = aten.gelu(%3) {approximate = "none"} : tensor<64x1024xf32>
  %5 = aten.mm(%4, %w2) : tensor<64x512xf32>
  return %5 : tensor<64x512xf32>
}
