// RUN: --localize

spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<2x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<2x1xf32> {
  %0 = aten.squeeze.dims(%x) {dim = 0} : tensor<2x1xf32> <dp: S(0)>
  return %0 : tensor<2x1xf32>
}

// | spmd.mesh @mesh <dp = 2>
// |
// | func.func @f(%x: tensor<1x1xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<1x1xf32> attributes {spmd.local} {
// |   %0 = aten.squeeze.dims(%x) {dim = []} : tensor<1x1xf32> <dp: S(0)>
// |   return %0 : tensor<1x1xf32>
// | }
