// RUN: spmd-opt %s --fold-views --split-input-file
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @summed_in_one_operand(%x: tensor<2x6x1xf32>, %w: tensor<8x4xf32>) -> tensor<2x6x4xf32> {
  %expand = aten.expand(%x) {size = [2, 6, 8]} : tensor<2x6x8xf32>
  %rows = aten.view(%expand) {size = [12, 8]} : tensor<12x8xf32>
  %product = aten.mm(%rows, %w) : tensor<12x4xf32>
  %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
  return %y : tensor<2x6x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @summed_in_one_operand(%x: tensor<2x6x1xf32>,
// |                                  %w: tensor<8x4xf32>) -> tensor<2x6x4xf32> {
// |   %expand = aten.expand(%x) {size = [2, 6, 8]} : tensor<2x6x8xf32>
// |   %rows = aten.view(%expand) {size = [12, 8]} : tensor<12x8xf32>
// |   %product = aten.mm(%rows, %w) : tensor<12x4xf32>
// |   %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
// |   return %y : tensor<2x6x4xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @nothing_is_split(%x: tensor<12x8xf32>, %w: tensor<4x8xf32>) -> tensor<4x12xf32> {
  %wt = aten.t(%w) : tensor<8x4xf32>
  %product = aten.mm(%x, %wt) : tensor<12x4xf32>
  %y = aten.t(%product) : tensor<4x12xf32>
  return %y : tensor<4x12xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @nothing_is_split(%x: tensor<12x8xf32>,
// |                             %w: tensor<4x8xf32>) -> tensor<4x12xf32> {
// |   %wt = aten.t(%w) : tensor<8x4xf32>
// |   %product = aten.mm(%x, %wt) : tensor<12x4xf32>
// |   %y = aten.t(%product) : tensor<4x12xf32>
// |   return %y : tensor<4x12xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @sizes_do_not_nest(%x: tensor<4x6x2xf32>, %w: tensor<3x4xf32>) -> tensor<16x4xf32> {
  %rows = aten.view(%x) {size = [16, 3]} : tensor<16x3xf32>
  %product = aten.mm(%rows, %w) : tensor<16x4xf32>
  return %product : tensor<16x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @sizes_do_not_nest(%x: tensor<4x6x2xf32>,
// |                              %w: tensor<3x4xf32>) -> tensor<16x4xf32> {
// |   %rows = aten.view(%x) {size = [16, 3]} : tensor<16x3xf32>
// |   %product = aten.mm(%rows, %w) : tensor<16x4xf32>
// |   return %product : tensor<16x4xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @a_sharding_is_given(%x: tensor<2x6x8xf32>, %w: tensor<8x4xf32>) -> tensor<2x6x4xf32> {
  %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
  %product = aten.mm(%rows, %w) : tensor<12x4xf32> <tp: S(0)>
  %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
  return %y : tensor<2x6x4xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @a_sharding_is_given(%x: tensor<2x6x8xf32>,
// |                                %w: tensor<8x4xf32>) -> tensor<2x6x4xf32> {
// |   %rows = aten.view(%x) {size = [12, 8]} : tensor<12x8xf32>
// |   %product = aten.mm(%rows, %w) : tensor<12x4xf32> <tp: S(0)>
// |   %y = aten.view(%product) {size = [2, 6, 4]} : tensor<2x6x4xf32>
// |   return %y : tensor<2x6x4xf32>
// | }
