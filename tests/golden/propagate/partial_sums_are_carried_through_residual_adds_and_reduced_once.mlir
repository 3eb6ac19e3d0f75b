// RUN: spmd-opt %s --propagate --insert-reshard
spmd.mesh @mesh <tp = 4>

// Both products pend, and they are added while they do: one reduction serves both.
func.func @block(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %a: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %b: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %0 = aten.mm(%x, %a) : tensor<64x64xf32>
  %1 = aten.mm(%x, %b) : tensor<64x64xf32>
  %2 = aten.add.Tensor(%0, %1) : tensor<64x64xf32>
  %3 = aten.neg(%2) : tensor<64x64xf32>
  %4 = aten.view(%3) {size = [4096]} : tensor<4096xf32>
  %5 = aten.view(%4) {size = [64, 64]} : tensor<64x64xf32>
  return %5 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @block(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %a: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %b: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.mm(%x, %a) : tensor<64x64xf32> <tp: P(sum)>
// |   %1 = aten.mm(%x, %b) : tensor<64x64xf32> <tp: P(sum)>
// |   %2 = aten.add.Tensor(%0, %1) : tensor<64x64xf32> <tp: P(sum)>
// |   %_2.reshard = spmd.reshard %2 : tensor<64x64xf32> <>
// |   %3 = aten.neg(%_2.reshard) : tensor<64x64xf32> <>
// |   %4 = aten.view(%3) {size = [4096]} : tensor<4096xf32> <>
// |   %5 = aten.view(%4) {size = [64, 64]} : tensor<64x64xf32> <>
// |   return %5 : tensor<64x64xf32>
// | }
