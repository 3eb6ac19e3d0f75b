// RUN: spmd-opt %s --split-input-file --propagate --insert-reshard
// Along parts of its axis, where a view separates its dimension.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<8x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<4096x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %r = aten.reshape(%w) {shape = [2, 4, 64]} : tensor<2x4x64xf32>
  %0 = aten.einsum([%x, %r]) {equation = "ab,cdb->acd"} : tensor<4096x2x4xf32>
  return %0 : tensor<4096x2x4xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<8x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}) -> (tensor<4096x2x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %r = aten.reshape(%w) {shape = [2, 4, 64]} : tensor<2x4x64xf32> <tp(1)2: S(0), tp(2)2: S(1)>
// |   %x.reshard = spmd.reshard %x : tensor<4096x64xf32> <>
// |   %0 = aten.einsum([%x.reshard, %r]) {equation = "ab,cdb->acd"} : tensor<4096x2x4xf32> <tp(1)2: S(1), tp(2)2: S(2)>
// |   %_0.reshard = spmd.reshard %0 : tensor<4096x2x4xf32> <tp: S(0)>
// |   return %_0.reshard : tensor<4096x2x4xf32>
// | }

// -----
// In a plug-in placement.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 2)>, spmd.keep = "tp"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %t = aten.t(%w) : tensor<64x64xf32>
  %0 = aten.mm(%x, %t) : tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Strided(0, 2)>, spmd.keep = "tp"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %t = aten.t(%w) : tensor<64x64xf32> <tp: Strided(1, 2)>
// |   %x.reshard = spmd.reshard %x : tensor<4096x64xf32> <>
// |   %0 = aten.mm(%x.reshard, %t) : tensor<4096x64xf32> <tp: Strided(1, 2)>
// |   %_0.reshard = spmd.reshard %0 : tensor<4096x64xf32> <tp: S(0)>
// |   return %_0.reshard : tensor<4096x64xf32>
// | }

// -----
// Along a part of an axis that the annotation names.
spmd.mesh @mesh <tp = 4>

func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>, spmd.keep = "tp(1)2"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %t = aten.t(%w) : tensor<64x64xf32>
  %0 = aten.mm(%x, %t) : tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%x: tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
// |              %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>, spmd.keep = "tp(1)2"}) -> (tensor<4096x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) attributes {spmd.stage = "resharded"} {
// |   %t = aten.t(%w) : tensor<64x64xf32> <tp(1)2: S(1)>
// |   %x.reshard = spmd.reshard %x : tensor<4096x64xf32> <>
// |   %0 = aten.mm(%x.reshard, %t) : tensor<4096x64xf32> <tp(1)2: S(1)>
// |   %_0.reshard = spmd.reshard %0 : tensor<4096x64xf32> <tp: S(0)>
// |   return %_0.reshard : tensor<4096x64xf32>
// | }
