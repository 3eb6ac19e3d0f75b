// RUN: spmd-opt %s --split-input-file --verify-diagnostics
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'aten.relu': has spmd.cast_first; expected it without a value, on a cast to a wider floating-point type: remove the attribute, or use aten._to_copy from a narrower type}}
  %a = aten.relu(%x) : tensor<8xf32> attributes {spmd.cast_first}
  return %a : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xbf16> {
  // expected-error@+1 {{has spmd.cast_first; expected it without a value, on a cast to a wider floating-point type: remove the attribute, or use aten._to_copy from a narrower type}}
  %a = aten._to_copy(%x) {dtype = bf16} : tensor<8xbf16> attributes {spmd.cast_first}
  return %a : tensor<8xbf16>
}
// -----
func.func @f(%x: tensor<8xi32>) -> tensor<8xf64> {
  // expected-error@+1 {{has spmd.cast_first; expected it without a value, on a cast to a wider floating-point type: remove the attribute, or use aten._to_copy from a narrower type}}
  %a = aten._to_copy(%x) {dtype = f64} : tensor<8xf64> attributes {spmd.cast_first}
  return %a : tensor<8xf64>
}
// -----
func.func @f(%x: tensor<8xbf16>) -> tensor<8xf32> {
  // expected-error@+1 {{has spmd.cast_first; expected it without a value, on a cast to a wider floating-point type: remove the attribute, or use aten._to_copy from a narrower type}}
  %a = aten._to_copy(%x) {dtype = f32} : tensor<8xf32> attributes {spmd.cast_first = "yes"}
  return %a : tensor<8xf32>
}
