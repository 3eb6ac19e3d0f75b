// RUN: spmd-opt %s --lower-reshard="topology=flat"
spmd.mesh @mesh <a = 2, b = 2, c = 2>

// Half of the ranks have their quarter of a partial value already; for the others, ranks that hold partial values reduce and send them.
func.func @f(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), c: P(sum)>}) -> (tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0), c: P(sum)>}) {
  %0 = spmd.reshard %x : tensor<1024x1024xf32> <a: S(0), b: S(0), c: P(sum)>
  return %0 : tensor<1024x1024xf32>
}

// | spmd.mesh @mesh <a = 2, b = 2, c = 2>
// |
// | func.func @f(%x: tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), c: P(sum)>}) -> (tensor<1024x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0), c: P(sum)>}) attributes {spmd.stage = "lowered"} {
// |   %0 = spmd.two_round_exchange %x : tensor<1024x1024xf32> <a: S(0), b: S(0), c: P(sum)>
// |   return %0 : tensor<1024x1024xf32>
// | }
