// RUN: spmd-opt %s --propagate=origins=true
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %s: tensor<64x64xf32>)
    -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: ?>}, tensor<64x64xf32> {spmd.like = "s"}) {
  %0 = aten.mm(%x, %s) : tensor<4096x64xf32>
  %c = spmd.constraint %0 : tensor<4096x64xf32> <tp: S(0)>
  %n = aten.neg(%s) : tensor<64x64xf32>
  return %c, %n : tensor<4096x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %s: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided", spmd.given = {"%x" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, "%c" = {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, "result 0" = {spmd.sharding = #spmd.sharding<@mesh, tp: ?>}, "result 1" = {spmd.like = "s"}}} {
// |   %0 = aten.mm(%x, %s) : tensor<4096x64xf32> <tp: S(0)>
// |   %c = spmd.constraint %0 : tensor<4096x64xf32> <tp: S(0)>
// |   %n = aten.neg(%s) : tensor<64x64xf32> <>
// |   return %c, %n : tensor<4096x64xf32>, tensor<64x64xf32>
// | }
