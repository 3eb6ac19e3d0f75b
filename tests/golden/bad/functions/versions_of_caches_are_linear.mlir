// RUN: spmd-opt %s --split-input-file --verify-diagnostics
spmd.mesh @mesh <tp = 2>

func.func @f(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  // expected-error@+1 {{%k of cache 'k' is written again; expected one write of each version: write %k.1, the version that the first write returns}}
  %k.2 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  return %k.2 : tensor<4x8x2x4xf32>
}

// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %q: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x1x2x4xf32>, tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  %k.1 = cache.write(%k, %q, %positions) : tensor<4x8x2x4xf32>
  // expected-error@+1 {{'cache.attend' reads %k of cache 'k' after its write; expected %k.1, the version that the write returns}}
  %y = cache.attend(%q, %k, %k.1, %positions) : tensor<4x1x2x4xf32>
  return %y, %k.1 : tensor<4x1x2x4xf32>, tensor<4x8x2x4xf32>
}

// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache", spmd.sharding = #spmd.sharding<@mesh, tp: S(2)>}) -> (tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation", spmd.sharding = #spmd.sharding<@mesh>}) {
  // expected-error@+1 {{'spmd.all_gather' uses %k of cache 'k'; expected a torch op that is not a view: caches are written in place, and never sent or viewed}}
  %whole = spmd.all_gather %k on [tp] dim 2 : tensor<4x8x2x4xf32> <>
  return %whole : tensor<4x8x2x4xf32>
}

// -----
spmd.mesh @mesh <tp = 2>

// expected-error@+1 {{the last version of cache 'k' is %k.1; expected it as the result with spmd.kind = "mutation" and spmd.name = "k"}}
func.func @f(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x8x2x4xf32> {spmd.name = "v", spmd.kind = "mutation"}) {
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  return %k.1 : tensor<4x8x2x4xf32>
}

// -----
spmd.mesh @mesh <tp = 2>

func.func @f(%k: tensor<4x8x2x4xf32> {spmd.kind = "cache"}, %rows: tensor<4x1x2x4xf32>, %positions: tensor<4x1xi64>) -> (tensor<4x8x2x4xf32>, tensor<4x8x2x4xf32> {spmd.name = "k", spmd.kind = "mutation"}) {
  // expected-error@+1 {{'aten.dropout' uses %k of cache 'k'; expected a torch op that is not a view: caches are written in place, and never sent or viewed}}
  %old = aten.dropout(%k) {p = 0.5, train = false} : tensor<4x8x2x4xf32>
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8x2x4xf32>
  return %old, %k.1 : tensor<4x8x2x4xf32>, tensor<4x8x2x4xf32>
}
