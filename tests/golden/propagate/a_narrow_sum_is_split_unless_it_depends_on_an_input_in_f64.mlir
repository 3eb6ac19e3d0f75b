// RUN: spmd-opt %s --propagate
spmd.mesh @mesh <a = 4>

func.func @f(%x: tensor<512x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}, %y: tensor<512x4096xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>})
    -> (tensor<512xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<512xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<512xf64> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %split = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<512xf32>
  %narrow = aten._to_copy(%y) {dtype = f32} : tensor<512x4096xf32>
  %whole = aten.sum.dim_IntList(%narrow) {dim = [1]} : tensor<512xf32>
  %double = aten.sum.dim_IntList(%y) {dim = [1]} : tensor<512xf64>
  return %split, %whole, %double : tensor<512xf32>, tensor<512xf32>, tensor<512xf64>
}

// | spmd.mesh @mesh <a = 4>
// |
// | func.func @f(%x: tensor<512x4096xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>},
// |              %y: tensor<512x4096xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}) -> (tensor<512xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<512xf32> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<512xf64> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "decided"} {
// |   %split = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<512xf32> <a: P(sum)>
// |   %narrow = aten._to_copy(%y) {dtype = f32} : tensor<512x4096xf32> <a: S(1)>
// |   %whole = aten.sum.dim_IntList(%narrow) {dim = [1]} : tensor<512xf32> <a: S(0)> needs (<a: S(0)>)
// |   %double = aten.sum.dim_IntList(%y) {dim = [1]} : tensor<512xf64> <a: P(sum)>
// |   return %split, %whole, %double : tensor<512xf32>, tensor<512xf32>, tensor<512xf64>
// | }
