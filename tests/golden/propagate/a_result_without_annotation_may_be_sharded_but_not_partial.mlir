// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <tp = 4>

// The second result is annotated as partial, so it stays.
func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %v: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<64x64xf32>, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x256xf32>) {
  %0 = aten.mm(%x, %w) : tensor<64x64xf32>
  %1 = aten.mm(%x, %v) : tensor<64x64xf32>
  %2 = aten.cos(%x) : tensor<64x256xf32>
  return %0, %1, %2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x256xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %v: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x64xf32> <tp: P(sum)>
// |   %1 = aten.mm(%x, %v) : tensor<64x64xf32> <tp: P(sum)>
// |   %2 = aten.cos(%x) : tensor<64x256xf32> <tp: S(1)>
// |   %_0.reshard = spmd.reshard %0 : tensor<64x64xf32> <tp: S(0)>
// |   return %_0.reshard, %1, %2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x256xf32>
// | }
