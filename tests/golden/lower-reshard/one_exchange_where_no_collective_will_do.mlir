// RUN: spmd-opt %s --lower-reshard=topology=flat
spmd.mesh @mesh <a = 2, b = 4>

// Every rank gets what it lacks in one all-to-all; a sum whose blocks move is reduced by the rank that receives the partial values.
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>}, %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: P(sum)>}) -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(1)>}, tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>}) {
  %0 = spmd.reshard %x : tensor<8x8xf32> <b: S(0), a: S(1)>
  %1 = spmd.reshard %y : tensor<8x8xf32> <a: S(0), b: S(1)>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}

// | spmd.mesh @mesh <a = 2, b = 4>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>},
// |              %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: P(sum)>}) -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(1)>}, tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>}) attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.exchange %x : tensor<8x8xf32> <b: S(0), a: S(1)>
// |   %1 = spmd.exchange %y : tensor<8x8xf32> <a: S(0), b: S(1)>
// |   return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
// | }
