// RUN: spmd-opt %s --propagate=certify
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @mlp(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
               %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
               %w2: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<4096x4096xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<4096x4096xf32>
  %2 = aten.mm(%1, %w2) : tensor<4096x1024xf32>
  return %2 : tensor<4096x1024xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @mlp(%x: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                %w1: tensor<1024x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                %w2: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided", spmd.certificate = {objective = 0.00026256238800000001 : f64, lower_bound = 0.00026256238800000001 : f64, floor = 0.000199170504 : f64}} {
// |   %0 = aten.mm(%x, %w1) : tensor<4096x4096xf32> <dp: S(0), tp: S(1)>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<4096x4096xf32> <dp: S(0), tp: S(1)>
// |   %2 = aten.mm(%1, %w2) : tensor<4096x1024xf32> <dp: S(0), tp: P(sum)>
// |   return %2 : tensor<4096x1024xf32>
// | }
// ! %s:4:1: remark: objective 0.2626 ms; no decision costs less than 0.2626 ms: gap 0.00%, or 0.0% of what is above the least compute of 0.1992 ms
