// RUN: spmd-opt %s --split-input-file --verify-diagnostics
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{spmd.recomputes is "b"; expected the name of the first result of an earlier op}}
  %again = aten.relu(%x) : tensor<8xf32> attributes {spmd.recomputes = "b"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{'aten.neg' does not recompute %a: the original is 'aten.relu'; expected 'aten.relu' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
  %again = aten.neg(%x) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.gelu(%x) {approximate = "none"} : tensor<8xf32>
  // expected-error@+1 {{'aten.gelu' does not recompute %a: its arguments, shardings or types differ; expected 'aten.gelu' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
  %again = aten.gelu(%x) {approximate = "tanh"} : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32>
  // expected-error@+1 {{'aten.relu' does not recompute %a: its operands differ from the original operands, and do not recompute them; expected 'aten.relu' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
  %again = aten.relu(%y) : tensor<8xf32> attributes {spmd.recomputes = "a"}
  return %again : tensor<8xf32>
}
// -----
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = aten.bernoulli(%x) : tensor<8xf32>
  // expected-error@+1 {{'aten.bernoulli' does not recompute %a: it draws new random numbers; expected 'aten.bernoulli' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
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
// -----
// What a collective moves is the same in a bucket and alone, at once and after a wait.
spmd.mesh @mesh <fsdp = 2>

func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
             %y: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(1)>}) -> tensor<8x4xf32> {
  %a.start, %b.start = spmd.all_gather_start %x, %y on [fsdp] dim [0, 1] : !spmd.pending<tensor<8x4xf32>> <>, !spmd.pending<tensor<4x8xf32>> <>
  %a, %b = spmd.wait %a.start, %b.start : tensor<8x4xf32> <>, tensor<4x8xf32> <>
  %t = aten.t(%b) : tensor<8x4xf32> <>
  %b.again = spmd.all_gather %y on [fsdp] dim 1 : tensor<4x8xf32> <> attributes {spmd.recomputes = "b"}
  %t.again = aten.t(%b.again) : tensor<8x4xf32> <> attributes {spmd.recomputes = "t"}
  return %t.again : tensor<8x4xf32>
}
// -----
spmd.mesh @mesh <fsdp = 2>

func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>},
             %y: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: S(0)>}) -> tensor<4x8xf32> {
  %a = spmd.all_gather %x on [fsdp] dim 0 : tensor<8x4xf32> <>
  %b = spmd.all_gather %y on [fsdp] dim 0 : tensor<8x4xf32> <>
  %t = aten.t(%a) : tensor<4x8xf32> <>
  // expected-error@+1 {{'aten.t' does not recompute %t: its operands differ from the original operands, and do not recompute them; expected 'aten.t' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
  %t.again = aten.t(%b) : tensor<4x8xf32> <> attributes {spmd.recomputes = "t"}
  return %t.again : tensor<4x8xf32>
}
// -----
// A sum over ranks may add its terms in another order in a bucket.
spmd.mesh @mesh <fsdp = 2>

func.func @f(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: P(sum)>},
             %y: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, fsdp: P(sum)>}) -> tensor<8x4xf32> {
  %a, %b = spmd.all_reduce %x, %y on [fsdp] op sum : tensor<8x4xf32> <>, tensor<4xf32> <>
  // expected-error@+1 {{'spmd.all_reduce' does not recompute %a: its arguments, shardings or types differ; expected 'spmd.all_reduce' with equal operands, arguments and types: repeat it so, or remove spmd.recomputes}}
  %a.again = spmd.all_reduce %x on [fsdp] op sum : tensor<8x4xf32> <> attributes {spmd.recomputes = "a"}
  return %a.again : tensor<8x4xf32>
}
