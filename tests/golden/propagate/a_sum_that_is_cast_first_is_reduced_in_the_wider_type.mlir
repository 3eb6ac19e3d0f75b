// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <dp = 4>

// what a transpose hands on of the sum %mm is not reduced before the cast; %other is, since its cast says nothing
func.func @f(%x: tensor<1024x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %g: tensor<1024x512xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<512x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %xt = aten.t(%x) : tensor<256x1024xbf16>
  %mm = aten.mm(%xt, %g) : tensor<256x512xbf16>
  %t = aten.t(%mm) : tensor<512x256xbf16>
  %grad = aten._to_copy(%t) {dtype = f32} : tensor<512x256xf32> attributes {spmd.cast_first}
  %mean = aten.mul.Scalar(%grad) {other = 0.5} : tensor<512x256xf32>
  %other = aten.mm(%xt, %x) : tensor<256x256xbf16>
  %wide = aten._to_copy(%other) {dtype = f32} : tensor<256x256xf32>
  return %mean, %wide : tensor<512x256xf32>, tensor<256x256xf32>
}

// | spmd.mesh @mesh <dp = 4>
// |
// | func.func @f(%x: tensor<1024x256xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
// |              %g: tensor<1024x512xbf16> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> (tensor<512x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, tensor<256x256xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %xt = aten.t(%x) : tensor<256x1024xbf16> <dp: S(1)>
// |   %mm = aten.mm(%xt, %g) : tensor<256x512xbf16> <dp: P(sum)>
// |   %t = aten.t(%mm) : tensor<512x256xbf16> <dp: P(sum)>
// |   %grad = aten._to_copy(%t) {dtype = f32} : tensor<512x256xf32> <dp: P(sum)> attributes {spmd.cast_first}
// |   %mean = aten.mul.Scalar(%grad) {other = 0.5} : tensor<512x256xf32> <dp: S(0)> needs (<dp: S(0)>)
// |   %other = aten.mm(%xt, %x) : tensor<256x256xbf16> <dp: P(sum)>
// |   %wide = aten._to_copy(%other) {dtype = f32} : tensor<256x256xf32> <dp: S(0)> needs (<dp: S(0)>)
// |   return %mean, %wide : tensor<512x256xf32>, tensor<256x256xf32>
// | }
