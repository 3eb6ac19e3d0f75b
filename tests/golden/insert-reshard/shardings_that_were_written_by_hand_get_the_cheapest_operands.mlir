// RUN: spmd-opt %s --split-input-file --insert-reshard
spmd.mesh @mesh <tp = 4>

// A partial sum of what is sharded alike needs nothing; columns of the product need all of %x and columns of %w.
func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %0 = aten.mm(%x, %w) : tensor<64x64xf32> <tp: P(sum)>
  %1 = aten.mm(%x, %w) : tensor<64x64xf32> <tp: S(1)>
  return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
// |              %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}, tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) attributes {spmd.stage = "resharded"} {
// |   %0 = aten.mm(%x, %w) : tensor<64x64xf32> <tp: P(sum)>
// |   %x.reshard = spmd.reshard %x : tensor<64x256xf32> <>
// |   %w.reshard = spmd.reshard %w : tensor<256x64xf32> <tp: S(1)>
// |   %1 = aten.mm(%x.reshard, %w.reshard) : tensor<64x64xf32> <tp: S(1)>
// |   return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// The sum over tp can pend because %x is cut to match %w, or because one of them pends: cutting %x is free.
func.func @g(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<64x64xf32> {
  %0 = aten.mm(%x, %w) : tensor<64x64xf32> <dp: S(0), tp: P(sum)>
  %1 = aten.add.Tensor(%0, %0) : tensor<64x64xf32> <dp: S(0), tp: P(sum)>
  %2 = aten.cos(%1) : tensor<64x64xf32> <dp: S(0)>
  return %2 : tensor<64x64xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @g(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %w: tensor<256x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<64x64xf32> attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<64x256xf32> <dp: S(0), tp: S(1)>
// |   %0 = aten.mm(%x.reshard, %w) : tensor<64x64xf32> <dp: S(0), tp: P(sum)>
// |   %1 = aten.add.Tensor(%0, %0) : tensor<64x64xf32> <dp: S(0), tp: P(sum)>
// |   %_1.reshard = spmd.reshard %1 : tensor<64x64xf32> <dp: S(0)>
// |   %2 = aten.cos(%_1.reshard) : tensor<64x64xf32> <dp: S(0)>
// |   return %2 : tensor<64x64xf32>
// | }

// -----
spmd.mesh @mesh <dp = 2, tp = 4>

// The operand has the nesting order of the result.
func.func @h(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<64x256xf32> {
  %0 = aten.cos(%x) : tensor<64x256xf32> <tp: S(0), dp: S(0)>
  return %0 : tensor<64x256xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 4>
// |
// | func.func @h(%x: tensor<64x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) -> tensor<64x256xf32> attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<64x256xf32> <tp: S(0), dp: S(0)>
// |   %0 = aten.cos(%x.reshard) : tensor<64x256xf32> <tp: S(0), dp: S(0)>
// |   return %0 : tensor<64x256xf32>
// | }
