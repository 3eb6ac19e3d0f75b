// RUN: spmd-opt %s --insert-reshard --verify-spmd --lower-reshard --localize
spmd.mesh @mesh <a = 2, b = 3>

func.func @main(%x: tensor<2x4x12x9xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(2), b: S(3)>},
                %w: tensor<6x2x3x3xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<2x6x6x9xf32> {
  %0 = aten.convolution(%x, %w, none) {dilation = [1, 1], groups = 2, output_padding = [0, 0], padding = [1, 1], stride = [2, 1], transposed = false} : tensor<2x6x6x9xf32> <a: S(2), b: S(3)>
  %1 = aten.max_pool2d(%0) {kernel_size = [3, 3], padding = [1, 1], stride = [1, 1]} : tensor<2x6x6x9xf32> <a: S(2), b: S(3)>
  return %1 : tensor<2x6x6x9xf32>
}

// | spmd.mesh @mesh <a = 2, b = 3>
// |
// | func.func @main(%x: tensor<2x4x6x3xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(2), b: S(3)>},
// |                 %w: tensor<6x2x3x3xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<2x6x3x3xf32> attributes {spmd.stage = "local"} {
// |   %_0.halo = spmd.halo %x on [a] dim 2 before 1 after 0 : tensor<2x4x7x3xf32> attributes {spmd.form = {op = "aten.convolution", operands = [tensor<2x4x12x9xf32>, tensor<6x2x3x3xf32>], needs = #spmd.shardings<@mesh, <a: S(2), b: S(3)>, <>>, results = [tensor<2x6x6x9xf32>], made = #spmd.shardings<@mesh, <a: S(2), b: S(3)>>, places = #spmd.arguments<{operands = [[0, 0], [2, 1]], ops = 3, results = [[2, 0]]}>, arguments = #spmd.arguments<{dilation = [1, 1], groups = 2, output_padding = [0, 0], padding = [1, 1], stride = [2, 1], transposed = false}>, structure = #spmd.structure<{slots = [1, 1, 0]}>}}
// |   %_0.halo_1 = spmd.halo %_0.halo on [b] dim 3 before 1 after 1 : tensor<2x4x7x5xf32>
// |   %0 = aten.convolution(%_0.halo_1, %w, none) {dilation = [1, 1], groups = 2, output_padding = [0, 0], padding = [0, 0], stride = [2, 1], transposed = false} : tensor<2x6x3x3xf32> <a: S(2), b: S(3)>
// |   %_1.halo = spmd.halo %0 on [a] dim 2 before 1 after 1 fill lowest : tensor<2x6x5x3xf32> attributes {spmd.form = {op = "aten.max_pool2d", operands = [tensor<2x6x6x9xf32>], needs = #spmd.shardings<@mesh, <a: S(2), b: S(3)>>, results = [tensor<2x6x6x9xf32>], made = #spmd.shardings<@mesh, <a: S(2), b: S(3)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 3, results = [[2, 0]]}>, arguments = #spmd.arguments<{kernel_size = [3, 3], padding = [1, 1], stride = [1, 1]}>}}
// |   %_1.halo_1 = spmd.halo %_1.halo on [b] dim 3 before 1 after 1 fill lowest : tensor<2x6x5x5xf32>
// |   %1 = aten.max_pool2d(%_1.halo_1) {kernel_size = [3, 3], padding = [0, 0], stride = [1, 1]} : tensor<2x6x3x3xf32> <a: S(2), b: S(3)>
// |   return %1 : tensor<2x6x3x3xf32>
// | }
