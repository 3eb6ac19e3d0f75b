// RUN: spmd-opt %s --propagate=origins=true | spmd explain - %0 %1
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<3x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<8xf32>, tensor<8xi64>) {
  %0 = aten.sum.dim_IntList(%y) {dim = [0]} : tensor<8xf32>
  %1, %2 = aten.sort(%0) {dim = 0, descending = false} : tensor<8xf32>, tensor<8xi64>
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xi64>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<3x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<8xi64> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided", spmd.given = {"%x" = {spmd.sharding = #spmd.sharding<@mesh>}, "%y" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, "result 0" = {spmd.sharding = #spmd.sharding<@mesh>}}} {
// |   %0 = aten.sum.dim_IntList(%y) {dim = [0]} : tensor<8xf32> <> needs (<>)
// |   %1, %2 = aten.sort(%0) {descending = false, dim = 0} : tensor<8xf32> <>, tensor<8xi64> <>
// |   return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xi64>
// | }
// $ spmd explain - %0 %1
// | %0 = aten.sum.dim_IntList : 8xf32 <>  <stdin>:5
// |   a rank has 32 B of 32 B; objective 12.4 us
// |   tp: R
// |     strategy (R) -> (R); next best that shards it (S(1)) -> (S(0)): objective 22.8 us, +83.9 %
// |   used without a reshard
// |     by %1 = aten.sort  <stdin>:6
// |     by result 0
// |
// | %1 = aten.sort : 8xf32 <>  <stdin>:6
// |   a rank has 32 B of 32 B; objective 12.4 us
// |   tp: R
// |     strategy (R) -> (R, R); no alternative that shards it; no S(d0): the rule does not allow sharding it (order.rules:35:76)
// |   used without a reshard
// |     by result 1
