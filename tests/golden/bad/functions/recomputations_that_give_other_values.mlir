// RUN: spmd-opt %s --split-input-file --verify-diagnostics
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{spmd.recomputes is "b"; expected the name of the first result of an op before}}
  %again = aten.relu(%x) : tensor<8xf32> attributes {spmd.recomputes = "b"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{'aten.neg' does not repeat the work of %a: that is 'aten.relu'; drop spmd.recomputes, or take the op as it is there}}
  %again = aten.neg(%x) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.gelu(%x) {approximate = "none"} : tensor<8xf32>
  // expected-error@+1 {{its arguments, shardings or types are other ones}}
  %again = aten.gelu(%x) {approximate = "tanh"} : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{its operands are neither the same nor recomputations of these}}
  %again = aten.relu(%y) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.bernoulli(%x) : tensor<8xf32>
  // expected-error@+1 {{it draws other random numbers}}
  %again = aten.bernoulli(%x) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
// A recomputation may read recomputations of what the original read, and be recomputed itself.
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  %0, %1 = aten.var_mean.correction(%a) {correction = 1, dim = [0]} : tensor<f32>, tensor<f32>
  %a.again = aten.relu(%x) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  %2, %3 = aten.var_mean.correction(%a.again) {correction = 1, dim = [0]} : tensor<f32>, tensor<f32> attributes {spmd.recomputes = "0"}
  %4, %5 = aten.var_mean.correction(%a) {correction = 1, dim = [0]} : tensor<f32>, tensor<f32> attributes {spmd.recomputes = "2"}
  %6 = aten.mul.Tensor(%a, %3) : tensor<8xf32>
  return %6 : tensor<8xf32>
}
