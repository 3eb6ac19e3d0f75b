// RUN: spmd-opt %s --split-input-file --localize --verify-spmd
// The operand is gathered block by block: what a rank has goes round.
spmd.mesh @mesh <tp = 3>

func.func @gathered(%x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<8x9xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<6x9xf32> {
  %y = aten.mm(%x, %w) : tensor<6x9xf32> <tp: S(1)> attributes {spmd.split}
  return %y : tensor<6x9xf32>
}

// | spmd.mesh @mesh <tp = 3>
// |
// | func.func @gathered(%x: tensor<2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                     %w: tensor<8x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<6x3xf32> attributes {spmd.stage = "local"} {
// |   %y.rotate_start = spmd.rotate_start %x on [tp] : !spmd.pending<tensor<2x8xf32>> attributes {spmd.form = {op = "aten.mm", operands = [tensor<6x8xf32>, tensor<8x9xf32>], needs = #spmd.shardings<@mesh, <tp: S(0)>, <tp: S(1)>>, results = [tensor<6x9xf32>], made = #spmd.shardings<@mesh, <tp: S(1)>>, places = #spmd.arguments<{operands = [[0, 0], [1, 1]], ops = 8, results = [[7, 0]]}>, spmd.split}}
// |   %y.mm = aten.mm(%x, %w) : tensor<2x3xf32>
// |   %y.wait = spmd.wait %y.rotate_start : tensor<2x8xf32>
// |   %y.rotate_start_1 = spmd.rotate_start %y.wait on [tp] : !spmd.pending<tensor<2x8xf32>>
// |   %y.mm_1 = aten.mm(%y.wait, %w) : tensor<2x3xf32>
// |   %y.wait_1 = spmd.wait %y.rotate_start_1 : tensor<2x8xf32>
// |   %y.mm_2 = aten.mm(%y.wait_1, %w) : tensor<2x3xf32>
// |   %y = spmd.assemble(%y.mm, %y.mm_1, %y.mm_2) {axes = ["tp"], dim = 0} : tensor<6x3xf32> <tp: S(1)>
// |   return %y : tensor<6x3xf32>
// | }

// -----
// The result is scattered block by block: the sum of a block goes round, and ends where it belongs.
spmd.mesh @mesh <tp = 3>

func.func @scattered(%x: tensor<6x9xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<9x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<6x8xf32> {
  %y = aten.mm(%x, %w) : tensor<6x8xf32> <tp: S(0)> attributes {spmd.split}
  return %y : tensor<6x8xf32>
}

// | spmd.mesh @mesh <tp = 3>
// |
// | func.func @scattered(%x: tensor<6x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |                      %w: tensor<3x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x8xf32> attributes {spmd.stage = "local"} {
// |   %y.slice = aten.slice.Tensor(%x) {dim = 0, end = end(6, tp, back 1), start = offset(6, tp, back 1)} : tensor<2x3xf32> attributes {spmd.form = {op = "aten.mm", operands = [tensor<6x9xf32>, tensor<9x8xf32>], needs = #spmd.shardings<@mesh, <tp: S(1)>, <tp: S(0)>>, results = [tensor<6x8xf32>], made = #spmd.shardings<@mesh, <tp: S(0)>>, places = #spmd.arguments<{operands = [[0, 0], [1, 1]], ops = 12, results = [[11, 0]]}>, spmd.split}}
// |   %y.mm = aten.mm(%y.slice, %w) : tensor<2x8xf32>
// |   %y.rotate_start = spmd.rotate_start %y.mm on [tp] : !spmd.pending<tensor<2x8xf32>>
// |   %y.slice_1 = aten.slice.Tensor(%x) {dim = 0, end = end(6, tp, back 2), start = offset(6, tp, back 2)} : tensor<2x3xf32>
// |   %y.mm_1 = aten.mm(%y.slice_1, %w) : tensor<2x8xf32>
// |   %y.wait = spmd.wait %y.rotate_start : tensor<2x8xf32>
// |   %y.add = aten.add.Tensor(%y.wait, %y.mm_1) : tensor<2x8xf32>
// |   %y.rotate_start_1 = spmd.rotate_start %y.add on [tp] : !spmd.pending<tensor<2x8xf32>>
// |   %y.slice_2 = aten.slice.Tensor(%x) {dim = 0, end = end(6, tp), start = offset(6, tp)} : tensor<2x3xf32>
// |   %y.mm_2 = aten.mm(%y.slice_2, %w) : tensor<2x8xf32>
// |   %y.wait_1 = spmd.wait %y.rotate_start_1 : tensor<2x8xf32>
// |   %y = aten.add.Tensor(%y.wait_1, %y.mm_2) : tensor<2x8xf32> <tp: S(0)>
// |   return %y : tensor<2x8xf32>
// | }

// -----
// A gather of what has gone round joins the blocks, and sends nothing.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @joined(%x: tensor<2x4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}, %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<2x4x6xf32>, tensor<2x4x8xf32>) {
  %y = aten.einsum([%x, %w]) {equation = "abc,cd->abd"} : tensor<2x4x6xf32> <dp: S(0), tp: S(2)> attributes {spmd.split}
  %g = spmd.all_gather %x on [tp] dim 1 : tensor<2x4x8xf32> <dp: S(0)>
  %z = aten.relu(%g) : tensor<2x4x8xf32> <dp: S(0)>
  return %y, %z : tensor<2x4x6xf32>, tensor<2x4x8xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @joined(%x: tensor<1x2x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
// |                   %w: tensor<8x3xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<1x4x3xf32>, tensor<1x4x8xf32>) attributes {spmd.stage = "local"} {
// |   %y.rotate_start = spmd.rotate_start %x on [tp] : !spmd.pending<tensor<1x2x8xf32>> attributes {spmd.form = {op = "aten.einsum", operands = [tensor<2x4x8xf32>, tensor<8x6xf32>], needs = #spmd.shardings<@mesh, <dp: S(0), tp: S(1)>, <tp: S(1)>>, results = [tensor<2x4x6xf32>], made = #spmd.shardings<@mesh, <dp: S(0), tp: S(2)>>, places = #spmd.arguments<{operands = [[0, 0], [1, 1]], ops = 5, results = [[4, 0]]}>, arguments = #spmd.arguments<{equation = "abc,cd->abd"}>, structure = #spmd.structure<{slots = [[1, 1]]}>, spmd.split}}
// |   %y.einsum = aten.einsum([%x, %w]) {equation = "abc,cd->abd"} : tensor<1x2x3xf32>
// |   %y.wait = spmd.wait %y.rotate_start : tensor<1x2x8xf32>
// |   %y.einsum_1 = aten.einsum([%y.wait, %w]) {equation = "abc,cd->abd"} : tensor<1x2x3xf32>
// |   %y = spmd.assemble(%y.einsum, %y.einsum_1) {axes = ["tp"], dim = 1} : tensor<1x4x3xf32> <dp: S(0), tp: S(2)>
// |   %g = spmd.assemble(%x, %y.wait) {axes = ["tp"], dim = 1} : tensor<1x4x8xf32> <dp: S(0)> attributes {spmd.form = {op = "spmd.all_gather", operands = [tensor<2x4x8xf32>], needs = #spmd.shardings<@mesh, <dp: S(0), tp: S(1)>>, results = [tensor<2x4x8xf32>], made = #spmd.shardings<@mesh, <dp: S(0)>>, places = #spmd.arguments<{operands = [[0, 0]], ops = 1, results = [[0, 0]]}>, arguments = #spmd.arguments<{axes = ["tp"], dim = 1}>}}
// |   %z = aten.relu(%g) : tensor<1x4x8xf32> <dp: S(0)>
// |   return %y, %z : tensor<1x4x3xf32>, tensor<1x4x8xf32>
// | }
