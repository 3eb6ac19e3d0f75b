// RUN: spmd-opt %s --cut-stages="at=2" --make-schedule="kind=gpipe"
// Each stage sends its sum of squares to the other one, and both add them in the same order.
spmd.mesh @mesh <tp = 2>

func.func @main(%parameters.0.weight: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %parameters.2.weight: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %lr.0: tensor<f64> {spmd.sharding = #spmd.sharding<@mesh>},
                %grad_norm: tensor<f64> {spmd.sharding = #spmd.sharding<@mesh>},
                %gradients.0.weight: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>},
                %gradients.2.weight: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
                %loss: tensor<f64> {spmd.sharding = #spmd.sharding<@mesh>},
                %x: tensor<2x8xf64> {spmd.name = "x", spmd.sharding = #spmd.sharding<@mesh>},
                %y: tensor<2x8xf64> {spmd.name = "y", spmd.sharding = #spmd.sharding<@mesh>}) -> (tensor<f64> {spmd.sharding = #spmd.sharding<@mesh>}, tensor<8x8xf64> {spmd.name = "parameters.0.weight", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, tensor<8x8xf64> {spmd.name = "parameters.2.weight", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, tensor<f64> {spmd.name = "lr.0", spmd.sharding = #spmd.sharding<@mesh>}, tensor<f64> {spmd.name = "grad_norm", spmd.sharding = #spmd.sharding<@mesh>}, tensor<8x8xf64> {spmd.name = "gradients.0.weight", spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, tensor<8x8xf64> {spmd.name = "gradients.2.weight", spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, tensor<f64> {spmd.name = "loss", spmd.sharding = #spmd.sharding<@mesh>}) attributes {spmd.stage = "lowered"} {
  %t = aten.t(%parameters.0.weight) : tensor<8x8xf64> <tp: S(1)>
  %mm = aten.mm(%x, %t) : tensor<2x8xf64> <tp: S(1)>
  %tanh = aten.tanh(%mm) : tensor<2x8xf64> <tp: S(1)>
  %t_1 = aten.t(%parameters.2.weight) : tensor<8x8xf64> <tp: S(0)>
  %mm_1 = aten.mm(%tanh, %t_1) : tensor<2x8xf64> <tp: P(sum)>
  %mm_1.reshard = spmd.all_reduce %mm_1 on [tp] op sum : tensor<2x8xf64> <>
  %sub = aten.sub.Tensor(%mm_1.reshard, %y) : tensor<2x8xf64> <>
  %pow_1 = aten.pow.Tensor_Scalar(%sub) {exponent = 2} : tensor<2x8xf64> <>
  %mean = aten.mean(%pow_1) : tensor<f64> <>
  %ones_like = aten.ones_like(%mean) : tensor<f64> <>
  %expand = aten.expand(%ones_like) {size = [2, 8]} : tensor<2x8xf64> <>
  %div = aten.div.Scalar(%expand) {other = 16} : tensor<2x8xf64> <>
  %pow_2 = aten.pow.Tensor_Scalar(%sub) {exponent = 1.0} : tensor<2x8xf64> <>
  %mul = aten.mul.Scalar(%pow_2) {other = 2.0} : tensor<2x8xf64> <>
  %mul_1 = aten.mul.Tensor(%div, %mul) : tensor<2x8xf64> <>
  %t_2 = aten.t(%mul_1) : tensor<8x2xf64> <>
  %mm_2 = aten.mm(%t_2, %tanh) : tensor<8x8xf64> <tp: S(1)>
  %t_3 = aten.t(%mm_2) : tensor<8x8xf64> <tp: S(0)>
  %t_4 = aten.t(%t_1) : tensor<8x8xf64> <tp: S(1)>
  %mm_3 = aten.mm(%mul_1, %t_4) : tensor<2x8xf64> <tp: S(1)>
  %t_5 = aten.t(%t_3) : tensor<8x8xf64> <tp: S(1)>
  %tanh_backward = aten.tanh_backward(%mm_3, %tanh) : tensor<2x8xf64> <tp: S(1)>
  %t_6 = aten.t(%tanh_backward) : tensor<8x2xf64> <tp: S(0)>
  %mm_4 = aten.mm(%t_6, %x) : tensor<8x8xf64> <tp: S(0)>
  %t_7 = aten.t(%mm_4) : tensor<8x8xf64> <tp: S(1)>
  %t_8 = aten.t(%t_7) : tensor<8x8xf64> <tp: S(0)>
  %div_1 = aten.div.Tensor(%mean) {other = 4} : tensor<f64> <>
  %add = aten.add.Tensor(%loss, %div_1) : tensor<f64> <>
  %div_2 = aten.div.Tensor(%t_8) {other = 4} : tensor<8x8xf64> <tp: S(0)>
  %add_1 = aten.add.Tensor(%gradients.0.weight, %div_2) : tensor<8x8xf64> <tp: S(0)>
  %div_3 = aten.div.Tensor(%t_5) {other = 4} : tensor<8x8xf64> <tp: S(1)>
  %add_2 = aten.add.Tensor(%gradients.2.weight, %div_3) : tensor<8x8xf64> <tp: S(1)>
  %pow_3 = aten.pow.Tensor_Scalar(%add_1) {exponent = 2} : tensor<8x8xf64> <tp: S(0)>
  %sum_1 = aten.sum(%pow_3) : tensor<f64> <tp: P(sum)>
  %pow_4 = aten.pow.Tensor_Scalar(%add_2) {exponent = 2} : tensor<8x8xf64> <tp: S(1)>
  %sum_2 = aten.sum(%pow_4) : tensor<f64> <tp: P(sum)>
  %stack = aten.stack([%sum_1, %sum_2]) : tensor<2xf64> <tp: P(sum)>
  %sum_3 = aten.sum(%stack) : tensor<f64> <tp: P(sum)>
  %sum_3.reshard = spmd.all_reduce %sum_3 on [tp] op sum : tensor<f64> <>
  %sqrt = aten.sqrt(%sum_3.reshard) : tensor<f64> <>
  %add_3 = aten.add.Tensor(%sqrt) {other = 1.0e-06} : tensor<f64> <>
  %reciprocal = aten.reciprocal(%add_3) : tensor<f64> <>
  %mul_2 = aten.mul.Tensor(%reciprocal) {other = 1.0} : tensor<f64> <>
  %clamp = aten.clamp(%mul_2) {max = 1.0} : tensor<f64> <>
  %mul_3 = aten.mul.Tensor(%add_1, %clamp) : tensor<8x8xf64> <tp: S(0)>
  %mul_4 = aten.mul.Tensor(%add_2, %clamp) : tensor<8x8xf64> <tp: S(1)>
  %neg = aten.neg(%lr.0) : tensor<f64> <>
  %mul_5 = aten.mul.Tensor(%mul_3, %neg) : tensor<8x8xf64> <tp: S(0)>
  %add_4 = aten.add.Tensor(%parameters.0.weight, %mul_5) : tensor<8x8xf64> <tp: S(0)>
  %mul_6 = aten.mul.Tensor(%mul_4, %neg) : tensor<8x8xf64> <tp: S(1)>
  %add_5 = aten.add.Tensor(%parameters.2.weight, %mul_6) : tensor<8x8xf64> <tp: S(1)>
  return %add, %add_4, %add_5, %lr.0, %sqrt, %add_1, %add_2, %add : tensor<f64>, tensor<8x8xf64>, tensor<8x8xf64>, tensor<f64>, tensor<f64>, tensor<8x8xf64>, tensor<8x8xf64>, tensor<f64>
}

// | spmd.mesh @mesh <tp = 2>
// |
// | #tp_S0 = #spmd.sharding<@mesh, tp: S(0)>
// | #replicated = #spmd.sharding<@mesh>
// | #tp_S1 = #spmd.sharding<@mesh, tp: S(1)>
// | #tp_Psum = #spmd.sharding<@mesh, tp: P(sum)>
// |
// | func.func private @stage0.forward(%parameters.0.weight: tensor<8x8xf64> {spmd.sharding = #tp_S0}, %x: tensor<2x8xf64> {spmd.sharding = #replicated}) -> (tensor<2x8xf64> {spmd.name = "tanh", spmd.sharding = #tp_S1}) attributes {spmd.stage = "lowered"} {
// |   %t = aten.t(%parameters.0.weight) : tensor<8x8xf64> <tp: S(1)>
// |   %mm = aten.mm(%x, %t) : tensor<2x8xf64> <tp: S(1)>
// |   %tanh = aten.tanh(%mm) : tensor<2x8xf64> <tp: S(1)>
// |   return %tanh : tensor<2x8xf64>
// | }
// |
// | func.func private @stage0.backward(%gradients.0.weight: tensor<8x8xf64> {spmd.sharding = #tp_S0}, %x: tensor<2x8xf64> {spmd.sharding = #replicated}, %tanh: tensor<2x8xf64> {spmd.sharding = #tp_S1},
// |                                    %mm_3: tensor<2x8xf64> {spmd.name = "mm_3", spmd.sharding = #tp_S1}) -> (tensor<8x8xf64> {spmd.name = "gradients.0.weight", spmd.sharding = #tp_S0}) attributes {spmd.stage = "lowered"} {
// |   %tanh_backward = aten.tanh_backward(%mm_3, %tanh) : tensor<2x8xf64> <tp: S(1)>
// |   %t_6 = aten.t(%tanh_backward) : tensor<8x2xf64> <tp: S(0)>
// |   %mm_4 = aten.mm(%t_6, %x) : tensor<8x8xf64> <tp: S(0)>
// |   %t_7 = aten.t(%mm_4) : tensor<8x8xf64> <tp: S(1)>
// |   %t_8 = aten.t(%t_7) : tensor<8x8xf64> <tp: S(0)>
// |   %div_2 = aten.div.Tensor(%t_8) {other = 4} : tensor<8x8xf64> <tp: S(0)>
// |   %add_1 = aten.add.Tensor(%gradients.0.weight, %div_2) : tensor<8x8xf64> <tp: S(0)>
// |   return %add_1 : tensor<8x8xf64>
// | }
// |
// | func.func private @stage0.update.0(%lr.0: tensor<f64> {spmd.sharding = #replicated}, %gradients.0.weight: tensor<8x8xf64> {spmd.sharding = #tp_S0}) -> (tensor<f64> {spmd.name = "neg", spmd.sharding = #replicated}, tensor<f64> {spmd.name = "sum_1", spmd.sharding = #tp_Psum}) attributes {spmd.stage = "lowered"} {
// |   %pow_3 = aten.pow.Tensor_Scalar(%gradients.0.weight) {exponent = 2} : tensor<8x8xf64> <tp: S(0)>
// |   %sum_1 = aten.sum(%pow_3) : tensor<f64> <tp: P(sum)>
// |   %neg = aten.neg(%lr.0) : tensor<f64> <>
// |   return %neg, %sum_1 : tensor<f64>, tensor<f64>
// | }
// |
// | func.func private @stage0.update.1(%parameters.0.weight: tensor<8x8xf64> {spmd.sharding = #tp_S0}, %gradients.0.weight: tensor<8x8xf64> {spmd.sharding = #tp_S0}, %sum_1: tensor<f64> {spmd.name = "sum_1", spmd.sharding = #tp_Psum},
// |                                    %sum_2: tensor<f64> {spmd.name = "sum_2", spmd.sharding = #tp_Psum}, %neg: tensor<f64> {spmd.sharding = #replicated}) -> (tensor<f64> {spmd.name = "grad_norm", spmd.sharding = #replicated}, tensor<8x8xf64> {spmd.name = "parameters.0.weight", spmd.sharding = #tp_S0}) attributes {spmd.stage = "lowered"} {
// |   %stack = aten.stack([%sum_1, %sum_2]) : tensor<2xf64> <tp: P(sum)>
// |   %sum_3 = aten.sum(%stack) : tensor<f64> <tp: P(sum)>
// |   %sum_3.reshard = spmd.all_reduce %sum_3 on [tp] op sum : tensor<f64> <>
// |   %sqrt = aten.sqrt(%sum_3.reshard) : tensor<f64> <>
// |   %add_3 = aten.add.Tensor(%sqrt) {other = 1.0e-06} : tensor<f64> <>
// |   %reciprocal = aten.reciprocal(%add_3) : tensor<f64> <>
// |   %mul_2 = aten.mul.Tensor(%reciprocal) {other = 1.0} : tensor<f64> <>
// |   %clamp = aten.clamp(%mul_2) {max = 1.0} : tensor<f64> <>
// |   %mul_3 = aten.mul.Tensor(%gradients.0.weight, %clamp) : tensor<8x8xf64> <tp: S(0)>
// |   %mul_5 = aten.mul.Tensor(%mul_3, %neg) : tensor<8x8xf64> <tp: S(0)>
// |   %add_4 = aten.add.Tensor(%parameters.0.weight, %mul_5) : tensor<8x8xf64> <tp: S(0)>
// |   return %sqrt, %add_4 : tensor<f64>, tensor<8x8xf64>
// | }
// |
// | func.func private @stage1.forward(%parameters.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}, %loss: tensor<f64> {spmd.sharding = #replicated}, %y: tensor<2x8xf64> {spmd.sharding = #replicated}, %tanh: tensor<2x8xf64> {spmd.sharding = #tp_S1}) -> (tensor<2x8xf64> {spmd.name = "sub", spmd.sharding = #replicated}, tensor<f64> {spmd.name = "mean", spmd.sharding = #replicated}, tensor<f64> {spmd.name = "loss", spmd.sharding = #replicated}) attributes {spmd.stage = "lowered"} {
// |   %t_1 = aten.t(%parameters.2.weight) : tensor<8x8xf64> <tp: S(0)>
// |   %mm_1 = aten.mm(%tanh, %t_1) : tensor<2x8xf64> <tp: P(sum)>
// |   %mm_1.reshard = spmd.all_reduce %mm_1 on [tp] op sum : tensor<2x8xf64> <>
// |   %sub = aten.sub.Tensor(%mm_1.reshard, %y) : tensor<2x8xf64> <>
// |   %pow_1 = aten.pow.Tensor_Scalar(%sub) {exponent = 2} : tensor<2x8xf64> <>
// |   %mean = aten.mean(%pow_1) : tensor<f64> <>
// |   %div_1 = aten.div.Tensor(%mean) {other = 4} : tensor<f64> <>
// |   %add = aten.add.Tensor(%loss, %div_1) : tensor<f64> <>
// |   return %sub, %mean, %add : tensor<2x8xf64>, tensor<f64>, tensor<f64>
// | }
// |
// | func.func private @stage1.backward(%parameters.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}, %gradients.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}, %tanh: tensor<2x8xf64> {spmd.sharding = #tp_S1},
// |                                    %sub: tensor<2x8xf64> {spmd.sharding = #replicated}, %mean: tensor<f64> {spmd.sharding = #replicated}) -> (tensor<2x8xf64> {spmd.name = "mm_3", spmd.sharding = #tp_S1}, tensor<8x8xf64> {spmd.name = "gradients.2.weight", spmd.sharding = #tp_S1}) attributes {spmd.stage = "lowered"} {
// |   %t_1 = aten.t(%parameters.2.weight) : tensor<8x8xf64> <tp: S(0)>
// |   %ones_like = aten.ones_like(%mean) : tensor<f64> <>
// |   %expand = aten.expand(%ones_like) {size = [2, 8]} : tensor<2x8xf64> <>
// |   %div = aten.div.Scalar(%expand) {other = 16} : tensor<2x8xf64> <>
// |   %pow_2 = aten.pow.Tensor_Scalar(%sub) {exponent = 1.0} : tensor<2x8xf64> <>
// |   %mul = aten.mul.Scalar(%pow_2) {other = 2.0} : tensor<2x8xf64> <>
// |   %mul_1 = aten.mul.Tensor(%div, %mul) : tensor<2x8xf64> <>
// |   %t_2 = aten.t(%mul_1) : tensor<8x2xf64> <>
// |   %mm_2 = aten.mm(%t_2, %tanh) : tensor<8x8xf64> <tp: S(1)>
// |   %t_3 = aten.t(%mm_2) : tensor<8x8xf64> <tp: S(0)>
// |   %t_4 = aten.t(%t_1) : tensor<8x8xf64> <tp: S(1)>
// |   %mm_3 = aten.mm(%mul_1, %t_4) : tensor<2x8xf64> <tp: S(1)>
// |   %t_5 = aten.t(%t_3) : tensor<8x8xf64> <tp: S(1)>
// |   %div_3 = aten.div.Tensor(%t_5) {other = 4} : tensor<8x8xf64> <tp: S(1)>
// |   %add_2 = aten.add.Tensor(%gradients.2.weight, %div_3) : tensor<8x8xf64> <tp: S(1)>
// |   return %mm_3, %add_2 : tensor<2x8xf64>, tensor<8x8xf64>
// | }
// |
// | func.func private @stage1.update.0(%lr.0: tensor<f64> {spmd.sharding = #replicated}, %gradients.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}) -> (tensor<f64> {spmd.name = "sum_2", spmd.sharding = #tp_Psum}, tensor<f64> {spmd.name = "neg", spmd.sharding = #replicated}) attributes {spmd.stage = "lowered"} {
// |   %pow_4 = aten.pow.Tensor_Scalar(%gradients.2.weight) {exponent = 2} : tensor<8x8xf64> <tp: S(1)>
// |   %sum_2 = aten.sum(%pow_4) : tensor<f64> <tp: P(sum)>
// |   %neg = aten.neg(%lr.0) : tensor<f64> <>
// |   return %sum_2, %neg : tensor<f64>, tensor<f64>
// | }
// |
// | func.func private @stage1.update.1(%parameters.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}, %gradients.2.weight: tensor<8x8xf64> {spmd.sharding = #tp_S1}, %sum_1: tensor<f64> {spmd.name = "sum_1", spmd.sharding = #tp_Psum},
// |                                    %sum_2: tensor<f64> {spmd.name = "sum_2", spmd.sharding = #tp_Psum}, %neg: tensor<f64> {spmd.sharding = #replicated}) -> (tensor<8x8xf64> {spmd.name = "parameters.2.weight", spmd.sharding = #tp_S1}) attributes {spmd.stage = "lowered"} {
// |   %stack = aten.stack([%sum_1, %sum_2]) : tensor<2xf64> <tp: P(sum)>
// |   %sum_3 = aten.sum(%stack) : tensor<f64> <tp: P(sum)>
// |   %sum_3.reshard = spmd.all_reduce %sum_3 on [tp] op sum : tensor<f64> <>
// |   %sqrt = aten.sqrt(%sum_3.reshard) : tensor<f64> <>
// |   %add_3 = aten.add.Tensor(%sqrt) {other = 1.0e-06} : tensor<f64> <>
// |   %reciprocal = aten.reciprocal(%add_3) : tensor<f64> <>
// |   %mul_2 = aten.mul.Tensor(%reciprocal) {other = 1.0} : tensor<f64> <>
// |   %clamp = aten.clamp(%mul_2) {max = 1.0} : tensor<f64> <>
// |   %mul_4 = aten.mul.Tensor(%gradients.2.weight, %clamp) : tensor<8x8xf64> <tp: S(1)>
// |   %mul_6 = aten.mul.Tensor(%mul_4, %neg) : tensor<8x8xf64> <tp: S(1)>
// |   %add_5 = aten.add.Tensor(%parameters.2.weight, %mul_6) : tensor<8x8xf64> <tp: S(1)>
// |   return %add_5 : tensor<8x8xf64>
// | }
// |
// | spmd.pipeline @step over pp = 2 micro 4 {
// |   batch x, y
// |   state grad_norm, lr, parameters
// |   sums gradients, loss
// |   outputs loss
// |   stage 0 at 0: F @stage0.forward, B @stage0.backward, U @stage0.update.0, U @stage0.update.1
// |   stage 1 at 1: F @stage1.forward, B @stage1.backward, U @stage1.update.0, U @stage1.update.1
// |   order
// |     0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 0F3 0F3>1 1F0 1F1 1F2 1F3 1B0 1B0>0 1B1 1B1>0 0B0 1B2 1B2>0 0B1 1B3 1B3>0
// |     0B2 0B3 0U0 0U0>1 1U0 1U0>0 0U1 1U1
// | }
