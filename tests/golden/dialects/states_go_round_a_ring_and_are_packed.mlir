// RUN: spmd-opt %s --load-plugin %S/summed.py

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  %0 = spmd.rotate %a on [tp] : tensor<4x6xf32>
  %1 = spmd.rotate %b on [dp, tp] steps 3 : tensor<4x6xf32>
  %2 = spmd.choose(%0, %a) {when = size(5, tp, back 1)} : tensor<4x6xf32>
  %3, %4 = spmd.identity(%2, %1) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
  %5, %6 = spmd.combine(%3, %4, %2, %1) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
  %7, %8 = spmd.finish(%5, %6) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
  %9 = spmd.pack(%5, %6) {by = "Summed"} : tensor<4x6x2xf32> <tp: Summed(0)> of [4, 6]
  return %7 : tensor<4x6xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>},
// |              %b: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
// |   %0 = spmd.rotate %a on [tp] : tensor<4x6xf32>
// |   %1 = spmd.rotate %b on [dp, tp] steps 3 : tensor<4x6xf32>
// |   %2 = spmd.choose(%0, %a) {when = size(5, tp, back 1)} : tensor<4x6xf32>
// |   %3, %4 = spmd.identity(%2, %1) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
// |   %5, %6 = spmd.combine(%3, %4, %2, %1) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
// |   %7, %8 = spmd.finish(%5, %6) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
// |   %9 = spmd.pack(%5, %6) {by = "Summed"} : tensor<4x6x2xf32> <tp: Summed(0)> of [4, 6]
// |   return %7 : tensor<4x6xf32>
// | }
