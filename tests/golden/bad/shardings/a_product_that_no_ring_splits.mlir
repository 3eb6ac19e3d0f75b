// RUN: spmd-opt %s --split-input-file --verify-diagnostics --verify-spmd
// Without the mark a product is not split: a gather is lacking.
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4x8xf32> {
  // expected-error@+1 {{on axis 'tp' (S(0), S(1)) -> (S(1)) is not a strategy of this op}}
  %y = aten.mm(%x, %w) : tensor<4x8xf32> <tp: S(1)>
  return %y : tensor<4x8xf32>
}

// -----

// Blocks of different sizes do not go round.
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<5x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %w: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<5x8xf32> {
  // expected-error@+1 {{on axis 'tp' (S(0), S(1)) -> (S(1)) is not a strategy of this op}}
  %y = aten.mm(%x, %w) : tensor<5x8xf32> <tp: S(1)> attributes {spmd.split}
  return %y : tensor<5x8xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<4x8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(2)>}, %w: tensor<4x6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1), dp: S(2)>}) -> tensor<4x8x8xf32> {
  // expected-error@+1 {{is split along 'dp' and 'tp'; expected one axis along which the op is rewritten: replicate its operands on the other axes}}
  %y = aten.bmm(%x, %w) : tensor<4x8x8xf32> <tp: S(0), dp: S(2)> attributes {spmd.split}
  return %y : tensor<4x8x8xf32>
}

// -----

// The blocks that go round are not next to each other.
spmd.mesh @mesh <dp = 2, tp = 2>

func.func @f(%x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0), dp: S(0)>}, %w: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<8x8xf32> {
  // expected-error@+1 {{is split along 'tp', but factor 'm' is sharded along ['tp', 'dp']; expected 'tp' to be the innermost of these axes, and the only one on its mesh axis: reorder the axes, or replicate the factor on the others}}
  %y = aten.mm(%x, %w) : tensor<8x8xf32> <dp: S(0), tp: S(1)> attributes {spmd.split}
  return %y : tensor<8x8xf32>
}
