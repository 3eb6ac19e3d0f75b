// RUN: spmd-opt %s --propagate=origins=true | spmd explain - %2 %1
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @mlp(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>},
               %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: ?, tp: S(1)>},
               %w2: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
  %0 = aten.mm(%x, %w1) : tensor<4096x4096xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<4096x4096xf32>
  %2 = aten.mm(%1, %w2) : tensor<4096x1024xf32>
  return %2 : tensor<4096x1024xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @mlp(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                %w2: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) attributes {spmd.stage = "decided", spmd.given = {"%x" = {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: ?>}, "%w1" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: ?>}}} {
// |   %0 = aten.mm(%x, %w1) : tensor<4096x4096xf32> <dp: S(0), tp: S(1)>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<4096x4096xf32> <dp: S(0), tp: S(1)>
// |   %2 = aten.mm(%1, %w2) : tensor<4096x1024xf32> <dp: S(0), tp: P(sum)>
// |   return %2 : tensor<4096x1024xf32>
// | }
// $ spmd explain - %2 %1
// | %2 = aten.mm : 4096x1024xf32 <dp: S(0), tp: P(sum)>  <stdin>:8
// |   a rank has 8.389 MB of 16.78 MB; objective 235.2 us
// |   dp: S(0)
// |     strategy (S(0), R) -> (S(0)); next best (R, S(1)) -> (S(1)): objective 269.7 us, +14.7 %
// |     from %x, annotated dp: S(0), through %1, %0; without it S(0): objective 235.2 us, +0.0 %
// |   tp: P(sum)
// |     strategy (S(1), S(0)) -> (P(sum)); next best that shards it (S(0), R) -> (S(0)): objective 242.3 us, +3.0 %
// |     from %w1, annotated tp: S(1), through %1, %0; without it S(0): objective 204.8 us, -12.9 %
// |   used as <dp: S(0), tp: S(0)>: reduce_scatter on [tp] dim 0 op sum, 6.291 MB sent, 36.08 us
// |     by result 0
// |       tp: strategy (S(0)) -> (); next best (S(1)) -> (): objective 238.5 us, +1.4 %
// |
// | %1 = aten.gelu : 4096x4096xf32 <dp: S(0), tp: S(1)>  <stdin>:7
// |   a rank has 8.389 MB of 67.11 MB; objective 235.2 us
// |   dp: S(0)
// |     strategy (S(0)) -> (S(0)); next best (S(1)) -> (S(1)): objective 272.5 us, +15.8 %
// |     from %x, annotated dp: S(0), through %0; without it S(0): objective 235.2 us, +0.0 %
// |   tp: S(1)
// |     strategy (S(1)) -> (S(1)); next best (S(0)) -> (S(0)): objective 242.3 us, +3.0 %
// |     from %w1, annotated tp: S(1), through %0; without it S(0): objective 204.8 us, -12.9 %
// |   used without a reshard
// |     by %2 = aten.mm  <stdin>:8
