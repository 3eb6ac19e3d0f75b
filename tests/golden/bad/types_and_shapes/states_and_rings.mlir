// RUN: spmd-opt %s --load-plugin %S/../../dialects/summed.py --split-input-file --verify-diagnostics

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the axes [tp, tp]; expected each axis once}}
  %0 = spmd.rotate %a on [tp, tp] : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has steps 0; expected an integer of at least 1}}
  %0 = spmd.rotate %a on [tp] steps 0 : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the unknown argument 'by'; expected only axes, steps, largest}}
  %0 = spmd.rotate %a on [tp] {by = 1} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the operands 4x5xf32 and 4x6xf32; expected tensors of one type}}
  %0 = spmd.choose(%b, %a) {when = size(5, tp)} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has when = shard(5, tp); expected a number that depends on the rank, as in `size(8, cp)`}}
  %0 = spmd.choose(%a, %a) {when = shard(5, tp)} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{axis 'pp' is not in mesh @mesh <dp = 2, tp = 4>; expected one of dp, tp}}
  %0 = spmd.choose(%a, %a) {when = size(5, pp)} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the unknown argument 'steps'; expected only when}}
  %0 = spmd.choose(%a, %a) {when = size(5, tp), steps = 1} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{combines a part 4x6xf32 with 4x5xf32; expected states of the same shapes}}
  %0, %1 = spmd.combine(%a, %a, %a, %b) {by = "Summed"} : tensor<4x6xf32>, tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has 2 operands and 1 results; expected 2 and 2}}
  %0 = spmd.finish(%a, %a) {by = "Summed"} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{returns 4x6xf32; expected 4x6x2xf32}}
  %0 = spmd.pack(%a, %a) {by = "Summed"} : tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the unknown argument 'part'; expected only by}}
  %0, %1 = spmd.identity(%a, %a) {by = "Summed", part = 1} : tensor<4x6xf32>, tensor<4x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has 0 `spmd.wait` ops; expected exactly one: add the wait, or remove the others}}
  %0 = spmd.rotate_start %a on [tp] : !spmd.pending<tensor<4x6xf32>>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has 1 operands and 1 results; expected 2 and 1}}
  %0 = spmd.assemble(%a) {axes = ["dp"], dim = 0} : tensor<8x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has dim 2; expected a dimension of its operands, 4x6xf32}}
  %0 = spmd.assemble(%a, %a) {axes = ["dp"], dim = 2} : tensor<8x6xf32>
  return %a : tensor<4x6xf32>
}

// -----

spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%a: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}, %b: tensor<4x5xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "local"} {
  // expected-error@+1 {{has the operands 4x6xf32, 4x5xf32; expected tensors of one type}}
  %0 = spmd.assemble(%a, %b) {axes = ["dp"], dim = 0} : tensor<8x6xf32>
  return %a : tensor<4x6xf32>
}
