// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <tp = 4>
func.func @f(%w: tensor<256x512xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"}, %x: tensor<64x256x512xbf16>) -> (tensor<64x2x256x128xbf16>) {
  %r = aten.reshape(%w) {shape = [2, 128, 512]} : tensor<2x128x512xbf16>
  %e = aten.einsum([%x, %r]) {equation = "abc,dec->adbe"} : tensor<64x2x256x128xbf16>
  return %e : tensor<64x2x256x128xbf16>
}

// | spmd.mesh @mesh <tp = 4>
// |
// | func.func @f(%w: tensor<256x512xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>, spmd.keep = "tp"},
// |              %x: tensor<64x256x512xbf16> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<64x2x256x128xbf16> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(1), tp(2)2: S(3)>}) attributes {spmd.stage = "decided"} {
// |   %r = aten.reshape(%w) {shape = [2, 128, 512]} : tensor<2x128x512xbf16> <tp(1)2: S(0), tp(2)2: S(1)>
// |   %e = aten.einsum([%x, %r]) {equation = "abc,dec->adbe"} : tensor<64x2x256x128xbf16> <tp(1)2: S(1), tp(2)2: S(3)>
// |   return %e : tensor<64x2x256x128xbf16>
// | }
