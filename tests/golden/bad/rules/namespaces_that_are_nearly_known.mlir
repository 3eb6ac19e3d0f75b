// RUN: spmd-opt %s --propagate --split-input-file --verify-diagnostics

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  // expected-error@+1 {{'atem.gelu' is not a torch op; did you mean 'aten.gelu'?}}
  %0 = atem.gelu(%x) {approximate = "none"} : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  // expected-error@+1 {{'aten.geluu': is not an op of torch 2.11 to 2.13; did you mean 'aten.gelu'?}}
  %0 = aten.geluu(%x) {approximate = "none"} : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<16x8xf32> {
  // expected-error@+1 {{unknown op 'spdm.all_gather'; did you mean 'spmd.all_gather'?}}
  %0 = spdm.all_gather %x on [tp] dim 0 : tensor<16x8xf32> <>
  return %0 : tensor<16x8xf32>
}

// -----

spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  // expected-warning@+1 {{'mylib.gelu' has no rule, so it runs replicated}}
  %0 = mylib.gelu(%x) : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
