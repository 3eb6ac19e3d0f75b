// RUN: spmd-opt %s --split-input-file --insert-reshard
spmd.mesh @mesh <tp = 2>

// The product pends if one factor does. To gather %x sends twice the bytes that an all-reduce of %y sends, in one round
// of messages instead of two: with the latency of a default machine it is quicker.
func.func @default(%x: tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %y: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) {
  %0 = aten.mul.Tensor(%x, %y) : tensor<4x2x4xf32> <tp: P(sum)>
  return %0 : tensor<4x2x4xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @default(%x: tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                    %y: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<4x2x4xf32> <>
// |   %0 = aten.mul.Tensor(%x.reshard, %y) : tensor<4x2x4xf32> <tp: P(sum)>
// |   return %0 : tensor<4x2x4xf32>
// | }

// -----
spmd.mesh @mesh <tp = 2>

// The function is decided for a machine on which only bytes count.
func.func @flat(%x: tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %y: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) attributes {spmd.decided_by = "propagate{topology=flat}"} {
  %0 = aten.mul.Tensor(%x, %y) : tensor<4x2x4xf32> <tp: P(sum)>
  return %0 : tensor<4x2x4xf32>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | func.func @flat(%x: tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |                 %y: tensor<2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) -> (tensor<4x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: P(sum)>}) attributes {spmd.decided_by = "propagate{topology=flat}", spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<4x2x4xf32> <tp: P(sum)>
// |   %y.reshard = spmd.reshard %y : tensor<2x4xf32> <>
// |   %0 = aten.mul.Tensor(%x.reshard, %y.reshard) : tensor<4x2x4xf32> <tp: P(sum)>
// |   return %0 : tensor<4x2x4xf32>
// | }

// -----
spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>

// The axes have 81 choices together, more than are planned; those that send least are. To gather %x sends a third of
// what an all-reduce of %y sends.
func.func @many(%x: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, d: S(0)>}, %y: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum), b: P(sum), c: P(sum), d: P(sum)>}) -> (tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum), b: P(sum), c: P(sum), d: P(sum)>}) {
  %0 = aten.mm(%x, %y) : tensor<256x256xf32> <a: P(sum), b: P(sum), c: P(sum), d: P(sum)>
  return %0 : tensor<256x256xf32>
}

// | spmd.mesh @mesh <a = 2, b = 2, c = 2, d = 2>
// |
// | func.func @many(%x: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, d: S(0)>},
// |                 %y: tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum), b: P(sum), c: P(sum), d: P(sum)>}) -> (tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum), b: P(sum), c: P(sum), d: P(sum)>}) attributes {spmd.stage = "resharded"} {
// |   %x.reshard = spmd.reshard %x : tensor<256x256xf32> <>
// |   %0 = aten.mm(%x.reshard, %y) : tensor<256x256xf32> <a: P(sum), b: P(sum), c: P(sum), d: P(sum)>
// |   return %0 : tensor<256x256xf32>
// | }
