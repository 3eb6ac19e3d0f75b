// RUN: spmd-opt %s --propagate="topology=flat" --verify-diagnostics
// @first and @last have no cache in common, but each has one in common with @middle.
spmd.mesh @mesh <tp = 2>

func.func @first(%k: tensor<4x8xf32> {spmd.kind = "cache"}, %w: tensor<4x8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<4x8xf32>, tensor<4x8xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %0 = aten.add.Tensor(%k, %w) : tensor<4x8xf32>
  return %0, %k : tensor<4x8xf32>, tensor<4x8xf32>
}

// expected-error@+1 {{argument 'w' is <tp: S(0)> in @middle, but the argument is <tp: S(1)> in @last; expected one sharding of each argument that functions with common caches share: annotate it in one function only, or equally in all}}
func.func @middle(%k: tensor<4x8xf32> {spmd.kind = "cache"}, %v: tensor<4x8xf32> {spmd.kind = "cache"}, %w: tensor<4x8xf32> {spmd.kind = "parameter"}) -> (tensor<4x8xf32>, tensor<4x8xf32> {spmd.name = "k", spmd.kind = "mutation"}, tensor<4x8xf32> {spmd.name = "v", spmd.kind = "mutation"}) {
  %0 = aten.add.Tensor(%k, %w) : tensor<4x8xf32>
  return %0, %k, %v : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

func.func @last(%v: tensor<4x8xf32> {spmd.kind = "cache"}, %w: tensor<4x8xf32> {spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> (tensor<4x8xf32>, tensor<4x8xf32> {spmd.name = "v", spmd.kind = "mutation"}) {
  %0 = aten.add.Tensor(%v, %w) : tensor<4x8xf32>
  return %0, %v : tensor<4x8xf32>, tensor<4x8xf32>
}
