// RUN: spmd-opt %s --propagate=origins=true | spmd explain - %t %w
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %t = aten.t(%w) : tensor<64x64xf32>
  %0 = aten.mm(%x, %t) : tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "decided", spmd.given = {"%x" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, "%w" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, "result 0" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}}} {
// |   %t = aten.t(%w) : tensor<64x64xf32> <> needs (<>)
// |   %0 = aten.mm(%x, %t) : tensor<4096x64xf32> <tp: S(0)>
// |   return %0 : tensor<4096x64xf32>
// | }
// $ spmd explain - %t %w
// | %t = aten.t : 64x64xf32 <>  <stdin>:5
// |   a rank has 16.38 kB of 16.38 kB; objective 10.75 us
// |   tp: R
// |     strategy (R) -> (R); next best that shards it (S(0)) -> (S(1)): objective 12.75 us, +18.6 %
// |   used without a reshard
// |     by %0 = aten.mm  <stdin>:6
// |
// | %w = argument : 64x64xf32 <tp: S(0)>
// |   a rank has 4.096 kB of 16.38 kB; objective 10.75 us
// |   tp: S(0)
// |     strategy () -> (S(0)); no alternative; the value is annotated tp: S(0)
// |     from %w, annotated tp: S(0); without it R: objective 2.262 us, -78.9 %
// |   used as <>: all_gather on [tp] dim 0, 12.29 kB sent, 8.487 us
// |     by %t = aten.t  <stdin>:5
// |       tp: strategy (R) -> (R); next best (S(0)) -> (S(1)): objective 12.75 us, +18.6 %
