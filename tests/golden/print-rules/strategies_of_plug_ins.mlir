// RUN: spmd-opt %s --propagate --print-rules
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x9xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(1, 1)>}) -> tensor<8x6xf32> {
  %a, %b, %c = aten.chunk(%x) {chunks = 3, dim = 1} : tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>
  %0 = aten.cat([%a, %b]) {dim = -1} : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}

// | spmd.mesh @mesh <dp = 2, tp = 2>
// |
// | func.func @f(%x: tensor<8x9xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Cyclic(1, 1)>}) -> (tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>}) attributes {spmd.stage = "decided"} {
// |   %a, %b, %c = aten.chunk(%x) {chunks = 3, dim = 1} : tensor<8x3xf32> <tp: P(sum)>, tensor<8x3xf32> <tp: P(sum)>, tensor<8x3xf32> <tp: P(sum)> needs (<tp: P(sum)>) attributes {spmd.rule = "([d0, d1]) -> ([d0, ~dim], [d0, ~dim], [d0, ~dim]) {d0 = 8, d1 = 9, ~dim = 3} unsharded {d1, ~dim} carries {self}", spmd.strategies = ["dp, tp: (Cyclic(0, 1)) -> (Cyclic(0, 1), Cyclic(0, 1), Cyclic(0, 1))", "dp, tp: no Cyclic(d1, 1): the rule does not allow sharding it (view.rules:59:72)", "dp, tp: no Cyclic(~dim, 1): the rule does not allow sharding it (view.rules:59:1)"]}
// |   %0 = aten.cat([%a, %b]) {dim = -1} : tensor<8x6xf32> <dp: S(0), tp: P(sum)> needs (<dp: S(0), tp: P(sum)>, <dp: S(0), tp: P(sum)>) attributes {spmd.rule = "([d0, ~dim], [d0, ~dim]) -> ([d0, w1]) {d0 = 8, ~dim = 3, ~dim = 3, w1 = 6} unsharded {~dim, ~dim, w1} carries {tensors}", spmd.strategies = ["dp, tp: (Cyclic(0, 1), Cyclic(0, 1)) -> (Cyclic(0, 1))", "dp, tp: no Cyclic(~dim, 1): the rule does not allow sharding it (view.rules:60:1)", "dp, tp: no Cyclic(w1, 1): the rule does not allow sharding it (view.rules:60:1)"]}
// |   return %0 : tensor<8x6xf32>
// | }
