// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 2, tp = 4>

func.func @stack(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %up0: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down0: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %up1: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down1: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %up2: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down2: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %up3: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %down3: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %up0) : tensor<64x1024xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32>
  %2 = aten.mm(%1, %down0) : tensor<64x256xf32>
  %3 = aten.add.Tensor(%x, %2) : tensor<64x256xf32>
  %4 = aten.mm(%3, %up1) : tensor<64x1024xf32>
  %5 = aten.gelu(%4) {approximate = "none"} : tensor<64x1024xf32>
  %6 = aten.mm(%5, %down1) : tensor<64x256xf32>
  %7 = aten.add.Tensor(%3, %6) : tensor<64x256xf32>
  %8 = aten.mm(%7, %up2) : tensor<64x1024xf32>
  %9 = aten.gelu(%8) {approximate = "none"} : tensor<64x1024xf32>
  %10 = aten.mm(%9, %down2) : tensor<64x256xf32>
  %11 = aten.add.Tensor(%7, %10) : tensor<64x256xf32>
  %12 = aten.mm(%11, %up3) : tensor<64x1024xf32>
  %13 = aten.gelu(%12) {approximate = "none"} : tensor<64x1024xf32>
  %14 = aten.mm(%13, %down3) : tensor<64x256xf32>
  %15 = aten.add.Tensor(%11, %14) : tensor<64x256xf32>
  return %15 : tensor<64x256xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @stack(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |                  %up0: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %down0: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %up1: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %down1: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %up2: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %down2: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                  %up3: tensor<256x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                  %down3: tensor<1024x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %0 = aten.mm(%x, %up0) : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %2 = aten.mm(%1, %down0) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   %3 = aten.add.Tensor(%x, %2) : tensor<64x256xf32> <dp: S(0)> needs (_, <dp: S(0)>)
// |   %4 = aten.mm(%3, %up1) : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %5 = aten.gelu(%4) {approximate = "none"} : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %6 = aten.mm(%5, %down1) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   %7 = aten.add.Tensor(%3, %6) : tensor<64x256xf32> <dp: S(0)> needs (_, <dp: S(0)>)
// |   %8 = aten.mm(%7, %up2) : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %9 = aten.gelu(%8) {approximate = "none"} : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %10 = aten.mm(%9, %down2) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   %11 = aten.add.Tensor(%7, %10) : tensor<64x256xf32> <dp: S(0)> needs (_, <dp: S(0)>)
// |   %12 = aten.mm(%11, %up3) : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %13 = aten.gelu(%12) {approximate = "none"} : tensor<64x1024xf32> <dp: S(0), tp: S(1)>
// |   %14 = aten.mm(%13, %down3) : tensor<64x256xf32> <dp: S(0), tp: P(sum)>
// |   %15 = aten.add.Tensor(%11, %14) : tensor<64x256xf32> <dp: S(0)> needs (_, <dp: S(0)>)
// |   return %15 : tensor<64x256xf32>
// | }
