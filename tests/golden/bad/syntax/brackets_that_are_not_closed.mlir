// RUN: spmd-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{'{' is not closed; expected '}'}}
  %1 = aten.gelu(%x) {approximate = "none" : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{this op is outside of a function; expected '{' after the signature and no '}' before this op}}
  %1 = aten.relu(%x) : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = aten.relu(%x) : tensor<4xf32>
  return %1 : tensor<4xf32>

// expected-error@+1 {{the previous function is not closed; expected '}'}}
func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{'(' is not closed; expected ')'}}
  %1 = aten.relu(%x : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>,
             // expected-error@+1 {{expected a type, as in tensor<16x64xf32>}}
             %y: tensor4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{this string is not closed on its line}}
  %1 = aten.gelu(%x) {approximate = "none} : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{found '%y', expected ',' before it: separate operands by commas}}
  %1 = aten.add.Tensor(%x %y) : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <dp = 2>

// expected-error@+1 {{found '@mesh dp: S(0)', expected the mesh}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh dp: S(0)>}) {
  return
}
