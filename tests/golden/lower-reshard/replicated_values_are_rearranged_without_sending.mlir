// RUN: spmd-opt %s --lower-reshard
spmd.mesh @mesh <a = 2, b = 4>

// Each rank puts its shard among zeros; no collective is made.
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>}) -> tensor<8x8xf32> {
  %0 = spmd.reshard %x : tensor<8x8xf32> <b: S(1), a: P(sum)>
  %1 = aten.neg(%0) : tensor<8x8xf32> <b: S(1), a: P(sum)>
  %2 = spmd.reshard %1 : tensor<8x8xf32> <b: S(1)>
  return %2 : tensor<8x8xf32>
}

// | spmd.mesh @mesh <a = 2, b = 4>
// |
// | func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(1)>}) -> tensor<8x8xf32> attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.rearrange %x : tensor<8x8xf32> <b: S(1), a: P(sum)>
// |   %1 = aten.neg(%0) : tensor<8x8xf32> <b: S(1), a: P(sum)>
// |   %2 = spmd.all_reduce %1 on [a] op sum : tensor<8x8xf32> <b: S(1)>
// |   return %2 : tensor<8x8xf32>
// | }
